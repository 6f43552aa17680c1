package reads

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay"
)

// TestShared: ten who look at once are shown one read.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		s := &Shared[int]{every: 5 * time.Second, timeout: time.Second, read: func(ctx context.Context) (int, error) {
			reads++
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			return reads, nil
		}}
		for range 10 {
			go func() { _, _, _ = s.Get(t.Context(), time.Second) }()
		}
		if v, at, err := s.Get(t.Context(), time.Second); v != 1 || at.IsZero() || err != nil {
			t.Errorf("%d of %v, %v", v, at, err)
		}
		synctest.Wait()
		if v, _, _ := s.Get(t.Context(), time.Second); v != 1 || reads != 1 {
			t.Errorf("%d, and %d reads", v, reads)
		}
		s.Changed()
		if v, _, _ := s.Get(t.Context(), time.Second); v != 2 {
			t.Errorf("after a change: %d", v)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.Changed()
		cancel() // one Viewer's end is not the read's
		_, _, _ = s.Get(ctx, time.Second)
		synctest.Wait()
		<-time.After(200 * time.Millisecond)
		if v, _, _ := s.Get(t.Context(), 0); v != 3 {
			t.Errorf("after a Viewer has gone: %d", v)
		}
	})
}

// TestSharedUnknown: who has waited in vain is told so: of what was never read, of what is older than it may be, and of
// what has changed since. The read's own time ends a moment later than its viewers'.
func TestSharedUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs, refused := true, errors.New("refused")
		s := &Shared[int]{every: 5 * time.Second, timeout: time.Second, read: func(ctx context.Context) (int, error) {
			if !hangs {
				return 7, nil
			}
			<-ctx.Done()
			<-time.After(time.Millisecond) // the connection is closed
			return 0, refused
		}}
		unknown := func(when string, wait time.Duration, since time.Time) {
			t.Helper()
			_, _, err := s.Get(t.Context(), wait)
			told, ok := errors.AsType[*UnknownError](err)
			if !ok || !told.Since.Equal(since) || Away(err) != told.Error() {
				t.Errorf("%s: %v, want one since %v", when, err, since)
			}
		}
		unknown("never read", time.Second, time.Time{})
		<-time.After(time.Second)
		if _, _, err := s.Get(t.Context(), 0); !errors.Is(err, refused) {
			t.Errorf("a read that failed: %v", err)
		}
		hangs = false
		s.Changed()
		_, at, err := s.Get(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		hangs = true
		s.Changed()
		unknown("changed since", time.Millisecond, at)
		if v, _, err := s.Get(t.Context(), 0); v != 7 || err != nil {
			t.Errorf("as of a moment ago: %d, %v", v, err)
		}
		<-time.After(2 * time.Second)
		hangs = false
		s.Changed()
		if _, at, err = s.Get(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		hangs = true
		<-time.After(time.Hour)
		unknown("old", 0, at)
		synctest.Wait()
		<-time.After(2 * time.Second)
	})
}

// TestSharedSlots: of many that are read at once, no more are under way than there are places.
func TestSharedSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most, reads atomic.Int64
		slots := make(chan struct{}, 3)
		for range 20 {
			s := &Shared[int]{every: time.Hour, timeout: time.Minute, slots: slots}
			s.read = func(context.Context) (int, error) {
				n := under.Add(1)
				defer under.Add(-1)
				most.Store(max(most.Load(), n))
				<-time.After(time.Second)
				return int(reads.Add(1)), nil
			}
			go func() { _, _, _ = s.Get(t.Context(), 0) }()
		}
		<-time.After(time.Minute)
		if most.Load() != 3 || reads.Load() != 20 {
			t.Errorf("%d at once, %d in all", most.Load(), reads.Load())
		}
	})
}

// TestRates: what goes in is told by ids, what goes out by what does not wait any more; what is not counted to its end
// tells nothing.
func TestRates(t *testing.T) {
	t.Parallel()
	at := time.Now()
	of := func(id, backlog int64, later time.Duration) Point {
		return pointOf(State{Outbox: &relay.Sample{LastID: id, Backlog: backlog}}, at.Add(later))
	}
	p := of(200, 30, 10*time.Second)
	p.since(of(100, 10, 0))
	if p.In != 10 || p.Out != 8 {
		t.Errorf("in %v, out %v", p.In, p.Out)
	}
	p = of(300, relay.SampleLimit, 20*time.Second)
	p.since(of(200, 30, 10*time.Second))
	if p.In != 10 || p.Out != -1 {
		t.Errorf("in %v, out %v of a count that ends at its limit", p.In, p.Out)
	}
}

// TestAwaySays: what a database that cannot be looked at needs.
func TestAwaySays(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"53300": "no connection left", "0A000": "Connect to the primary", "25006": "Connect to the primary",
		"57P03": "Look whether Postgres runs", "42601": "as it is",
	} {
		err := fmt.Errorf("reading: %w", &pgconn.PgError{Code: code, Message: "as it is"})
		if got := Away(err); !strings.Contains(got, want) {
			t.Errorf("%s: %q", code, got)
		}
	}
}
