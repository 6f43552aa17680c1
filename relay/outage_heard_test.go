package relay

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestAFailedDialIsNoNewsOfBefore: a connection that an outage has killed is noticed late, and says nothing. A server
// that lets nobody in says something, however old the last connection to it was.
func TestAFailedDialIsNoNewsOfBefore(t *testing.T) {
	t.Parallel()
	told := 0
	o := &outage{what: "postgres", log: slog.New(slog.DiscardHandler), notify: func(_ string, err error) {
		if err != nil {
			told++
		}
	}}
	away := errors.New("connection refused")
	s := &session{name: "idle", timeout: time.Minute, heard: time.Now(), opened: true}
	s.connect = func(context.Context) (connection, error) { return nil, away }
	o.report("busy", away, time.Now())
	o.report("busy", nil, time.Now())
	if o.report(s.name, errors.New("conn closed"), s.heard); told != 1 {
		t.Errorf("the connection that died in the outage is told as another one: %d", told)
	}
	err := s.open(t.Context())
	if o.report(s.name, err, s.heard); told != 2 {
		t.Errorf("a server that lets nobody in is not told: %v, %d", err, told)
	}
}
