package ui

import (
	"errors"
	"net/http"

	"github.com/effectonce/effectonce/internal/loopback"
)

// Localhost is a Config.Authorize for a server that listens on this machine only: everybody there may operate, in one
// name. A page of another site can have a browser of this machine send requests under a name of that site, as one that
// its name server gives this machine's address; such a name is refused, and so is who comes from elsewhere or
// through a proxy: everybody who reaches the proxy would operate.
func Localhost(name string) func(*http.Request) (Identity, error) {
	return func(r *http.Request) (Identity, error) {
		if !loopback.Request(r) {
			return Identity{}, errors.New("this page answers this machine only, as localhost and not through a " +
				"proxy: for others it must be told who may come in (--users, --proxy-header)")
		}
		return Identity{Name: name, Level: Operate}, nil
	}
}
