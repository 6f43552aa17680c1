// Package loopback tells this machine from others.
package loopback

import "net"

// Is reports whether a host, without a port, is this machine: localhost, or an address of the loopback network.
func Is(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
