package outage_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

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
