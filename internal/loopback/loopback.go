// Package loopback tells this machine from others.
package loopback

import (
	"net"
	"net/http"
	"strings"
)

// Is reports whether a host, without a port, is this machine: localhost, or an address of the loopback network.
func Is(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Request reports whether a request is from this machine and for it by name. One that a proxy has forwarded is not,
// whatever Host the proxy sends; neither is one of a page whose name has this machine's address (DNS rebinding).
func Request(r *http.Request) bool { return From(r) && Named(r) && !forwarded(r.Header) }

// From reports whether a request is from this machine: of a client on it, or of a proxy on it.
func From(r *http.Request) bool {
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	return Is(from)
}

// Named reports whether a request is for this machine by name.
func Named(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	return Is(host)
}

// forwarded goes by the headers in which proxies say so: RFC 7239, RFC 9110 and what came before them.
func forwarded(h http.Header) bool {
	for name := range h {
		switch name = strings.ToLower(name); {
		case name == "forwarded", name == "via", name == "x-real-ip", strings.HasPrefix(name, "x-forwarded-"),
			strings.HasPrefix(name, "x-envoy-"):
			return true
		}
	}
	return false
}
