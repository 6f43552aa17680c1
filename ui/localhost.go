package ui

import (
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/effectonce/effectonce/internal/loopback"
)

// Localhost is a Config.Authorize for a server that listens on this machine only: everybody there may operate, in one
// name. A page of another site can have a browser of this machine send requests under a name of that site, as one that
// its name server gives this machine's address; such a name is refused, and so is who comes from elsewhere.
func Localhost(name string) func(*http.Request) (Identity, error) {
	return func(r *http.Request) (Identity, error) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		if !loopback.Is(host) || !loopback.Is(from) {
			return Identity{}, errors.New("this page answers this machine only, as localhost: for others it must be " +
				"told who may come in")
		}
		return Identity{Name: name, Level: Operate}, nil
	}
}
