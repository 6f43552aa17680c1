package errtree

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/segmentio/kafka-go"
)

// TestKinds: an error is new when its code or text is, whatever its address, and whoever wraps it.
func TestKinds(t *testing.T) {
	t.Parallel()
	dial := func(port int, err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{Port: port}, Err: err}
	}
	postgres := func(code, message string) error { return &pgconn.PgError{Code: code, Message: message} }
	var k Kinds
	for i, c := range []struct {
		err error
		new bool
	}{
		{dial(1, syscall.ECONNREFUSED), true},
		{dial(2, syscall.ECONNREFUSED), false},
		{fmt.Errorf("connecting at 10:02: %w", dial(3, syscall.ECONNREFUSED)), false},
		{postgres("28P01", "password authentication failed"), true},
		{fmt.Errorf("keeper: %w", postgres("28P01", "la contraseña no es válida")), false},
		{postgres("42501", "permission denied"), true},
		{dial(1, syscall.ECONNREFUSED), false}, // it was said
		{kafka.TopicAuthorizationFailed, true},
		{fmt.Errorf("topic t: %w", kafka.TopicAuthorizationFailed), false},
		{kafka.LeaderNotAvailable, true},
		{errors.New("no route to 10.0.0.1:9092"), true},
		{errors.New("no route to 10.0.0.2:9092"), false},
		{errors.Join(dial(1, syscall.ECONNREFUSED), dial(2, syscall.ETIMEDOUT)), true},
		{errors.Join(dial(2, syscall.ETIMEDOUT), dial(1, syscall.ECONNREFUSED)), false},
	} {
		if got := k.New(c.err); got != c.new {
			t.Errorf("%d, %v: new %v", i, c.err, got)
		}
	}
	for i := range 10 * mostKinds {
		k.New(errors.New(string(rune('a' + i))))
	}
	if len(k.seen) != mostKinds {
		t.Errorf("%d kinds", len(k.seen))
	}
}
