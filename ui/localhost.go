package ui

import (
	"errors"
	"net/http"

	"github.com/effectonce/effectonce/internal/loopback"
)

// Localhost is a Config.Authorize for a server that listens on this machine only: all local users may operate, under
// one name. It refuses remote clients, and requests through a proxy, whose users would all operate. Against DNS
// rebinding it refuses a Host that is not a loopback name.
func Localhost(name string) func(*http.Request) (Identity, error) {
	return func(r *http.Request) (Identity, error) {
		if !loopback.Request(r) {
			return Identity{}, errors.New("this page answers this machine only, as localhost and not through a " +
				"proxy: for others it must be told who may come in (--users, --proxy-header)")
		}
		return Identity{Name: name, Level: Operate}, nil
	}
}
