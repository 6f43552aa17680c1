package kafkaguard

import (
	"net"
	"strconv"
	"strings"
)

// IsAddress reports whether a broker's address is host:port. A host has no quotation mark and no blank, which a quoted
// list would leave in it.
func IsAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "\"'` \t\r\n/\ufeff") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
