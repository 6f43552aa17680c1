package start_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// TestStalled: what waits counts from the first probe that saw it, or from the last settle.
func TestStalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p start.Progress
		want := func(d time.Duration) {
			t.Helper()
			if got := p.Stalled(0); got != d {
				t.Errorf("it has stalled for %v, want %v", got, d)
			}
		}
		want(0)
		p.Waits(true, time.Now())
		<-time.After(time.Second)
		p.Waits(true, time.Now())
		want(time.Second)
		p.Settled()
		<-time.After(time.Minute)
		want(time.Minute)
		p.Waits(false, time.Now())
		want(0)
		end := p.Streams()
		<-time.After(time.Second)
		want(time.Second)
		end()
		want(0)
		if got := p.Stalled(time.Hour); got != time.Minute+time.Second { // since the last settle
			t.Errorf("what is held has stalled for %v", got)
		}
		if got := p.Stalled(time.Second); got != time.Second {
			t.Errorf("what is held has stalled for %v", got)
		}
	})
}

// TestClock: the database's clock goes on between two readings.
func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c start.Clock
		if _, known := c.Now(); known {
			t.Error("a clock that was not read is known")
		}
		there := time.Now().Add(48 * time.Hour)
		c.Set(there)
		<-time.After(time.Minute)
		if now, known := c.Now(); !known || !now.Equal(there.Add(time.Minute)) {
			t.Errorf("a minute after %v it is %v", there, now)
		}
	})
}

func newStart() *start.Start {
	table := lanes.New(lanes.Pumps)
	table.Leased(map[int16]int64{1: 1, 2: 1}, time.Now().Add(time.Hour))
	return &start.Start{
		Log: slog.New(slog.DiscardHandler), Lanes: table, Signals: signal.New(0),
		Health: delivery.NewHealth(time.Second, time.Now(), func() delivery.Pauses { return outage.NewBackOff() }),
	}
}

// TestRefused: the trouble of a lane ends with its work, or with the lane.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := newStart()
	s.Refuse(1, errors.New("no such column"), false)
	if text, since := s.Refused(time.Now()); text != "lane 1: no such column" || since.IsZero() {
		t.Errorf("the trouble is %q since %v", text, since)
	}
	if s.Worked(1, true); len(s.Signals.Beats) != 1 {
		t.Error("no heartbeat shows the trouble")
	}
	if text, _ := s.Refused(time.Now()); text == "" {
		t.Error("the move of due events ends the trouble of other work")
	}
	s.Worked(1, false)
	s.Refuse(3, errors.New("of another relay's lane"), false)
	s.Refuse(2, errors.New("due"), true)
	if text, _ := s.Refused(time.Now().Add(time.Minute)); text != "" {
		t.Errorf("due events that are not refused any more are trouble: %q", text)
	}
}

// TestHeld: held places are named by their age, and those that answer again are not.
func TestHeld(t *testing.T) {
	t.Parallel()
	s, now := newStart(), time.Now()
	for i, topic := range []string{"a", "b", "c", "d", "e"} {
		at := delivery.Whole(topic)
		s.Health.Close(at, now.Add(-time.Duration(i+1)*time.Minute))
		s.Holds(at, errors.New("not authorised"))
	}
	s.Health.Open(delivery.Whole("e"), now)
	text, lasts := s.Held(now)
	if !strings.HasPrefix(text, "holds topic d for 4m0s: not authorised; topic c for 3m0s") ||
		!strings.HasSuffix(text, "; and 1 more") || lasts != 4*time.Minute {
		t.Errorf("for %v it %s", lasts, text)
	}
}
