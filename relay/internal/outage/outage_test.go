package outage_test

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/outage"
)

// A part whose connection died in an outage may notice that late, once. If it fails on, there is an outage again.
func TestALateErrorIsIgnoredOnce(t *testing.T) {
	t.Parallel()
	var said []string
	m := outage.Monitor{System: "postgres", Log: slog.New(slog.DiscardHandler), Notify: func(_ string, err error) {
		if err == nil {
			said = append(said, "well")
		} else {
			said = append(said, err.Error())
		}
	}}
	before := time.Now()
	m.Report("keeper", errors.New("gone"), before)
	m.Report("keeper", nil, before)
	for range 2 {
		m.Report("pump", errors.New("no route"), before)
	}
	if len(said) != 3 || said[2] != "no route" || !m.Away() {
		t.Errorf("it was said: %q", said)
	}
	m.Report("pump", nil, time.Now())
	m.Report("prober", errors.New("noticed late"), before)
	m.Report("prober", nil, time.Now())
	if len(said) != 4 || m.Away() {
		t.Errorf("it was said: %q", said)
	}
}

// An outage that goes on for another reason is said again, and not for another address.
func TestAnotherErrorIsSaid(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	begins := 0
	m := outage.Monitor{System: "postgres", Log: slog.New(slog.NewTextHandler(&said, nil))}
	m.Notify = func(_ string, err error) {
		if err != nil {
			begins++
		}
	}
	refused := func(port int) error {
		return &net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: port}, Err: syscall.ECONNREFUSED}
	}
	password := &pgconn.PgError{Code: "28P01", Message: "password authentication failed"}
	for range 2 {
		m.Report("keeper", refused(1), time.Now())
		m.Report("pump", refused(2), time.Now())
		m.Report("keeper", password, time.Now())
		m.Report("pump", password, time.Now())
		m.Report("keeper", nil, time.Now())
		m.Report("pump", nil, time.Now())
	}
	if n := strings.Count(said.String(), "level=ERROR"); n != 4 || begins != 2 ||
		strings.Count(said.String(), "28P01") != 2 {
		t.Errorf("%d errors, %d begins: %s", n, begins, said.String())
	}
}

// A part that waits is no reason to say that the system is well, until it answers somebody; it does not try.
func TestWaits(t *testing.T) {
	t.Parallel()
	well := 0
	m := outage.Monitor{System: "kafka", Log: slog.New(slog.DiscardHandler), Notify: func(_ string, err error) {
		if err == nil {
			well++
		}
	}}
	m.Waits("a part that does not fail")
	m.Answered()
	for _, part := range []string{"pump", "rest"} {
		m.Report(part, errors.New("gone"), time.Now())
	}
	m.Waits("rest")
	m.Report("pump", nil, time.Now())
	if since, err := m.Trouble(); m.Away() || err == nil || since.IsZero() || well != 0 {
		t.Errorf("while it waits: away %v, %v, %d ends", m.Away(), err, well)
	}
	m.Report("pump", errors.New("gone"), time.Now())
	if m.Answered(); !m.Away() || well != 0 {
		t.Errorf("another part fails: away %v, %d ends", m.Away(), well)
	}
	if m.Report("pump", nil, time.Now()); well != 1 {
		t.Errorf("%d ends", well)
	}
}
