package wal

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// TestPart: how many lanes a relay takes, and since when it cannot read the WAL.
func TestPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p Part
		if p.now() != off || p.Share(3) != 3 || !p.Polls() {
			t.Error("a relay that reads no WAL takes no part of the lanes")
		}
		if p.Begin(); p.Share(3) != 0 || p.Polls() {
			t.Error("a relay takes lanes before it knows which relay reads")
		}
		first, last := errors.New("no slot"), errors.New("no slot yet")
		if began := time.Now(); !p.set(unavailable, first) {
			t.Error("another mode is no change")
		} else {
			<-time.After(time.Minute)
			if p.set(unavailable, last) {
				t.Error("the same mode is a change")
			}
			if since, err := p.Unavailable(); !since.Equal(began) || !errors.Is(err, last) {
				t.Errorf("it is unavailable since %v, want %v: %v", since, began, err)
			}
		}
		p.set(streaming, nil)
		if _, err := p.Unavailable(); err != nil || p.Share(3) != lanes.Count {
			t.Errorf("a relay that reads takes %d lanes: %v", p.Share(3), err)
		}
	})
}
