package consumer

import (
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
)

// TestAnotherErrorIsSaid: an outage that goes on for another reason is said again, and not for another address.
func TestAnotherErrorIsSaid(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	o := outage{log: slog.New(slog.NewTextHandler(&said, nil)), observer: &Observer{}}
	refused := func(port int) error {
		return &net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: port}, Err: syscall.ECONNREFUSED}
	}
	for range 2 {
		other := kafka.SASLAuthenticationFailed
		for _, err := range []error{refused(1), refused(2), other, other} {
			o.fail("group", err)
		}
		o.works("group")
	}
	if n := strings.Count(said.String(), "level=WARN"); n != 4 {
		t.Errorf("%d lines: %s", n, said.String())
	}
}
