package kafkaguard

import (
	"net"
	"strconv"
	"strings"
)

// IsAddress reports whether a broker's address is host:port. A quotation mark or a blank, as a list in quotation marks
// has it, is part of no host.
func IsAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "\"'` \t\r\n/\ufeff") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
