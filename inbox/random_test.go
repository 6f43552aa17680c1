package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestP9_6_Random: several members handle one log at the same time, as zombies do. Some effects fail for good, some
// once. An operator releases again and again, and two releasers run the released events. In the end each event is
// applied once, and the events of a key in the order of the log (I1, I4).
func TestP9_6_Random(t *testing.T) {
	t.Parallel()
	for _, dedup := range []inbox.Dedup{inbox.ByID, inbox.ByWatermark, inbox.ByOffset} {
		t.Run(dedup.String(), func(t *testing.T) {
			t.Parallel()
			random(t, dedup)
		})
	}
}

func random(t *testing.T, dedup inbox.Dedup) {
	seed := draw.Seed(t)
	draw := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t)
	var keys []string
	for range 240 {
		keys = append(keys, fmt.Sprint(draw.IntN(8)))
	}
	log := keyed(keys...)
	if dedup == inbox.ByWatermark {
		number(log, epochOne, 1)
	}
	var mu sync.Mutex
	bad := map[uuid.UUID]int{} // number of failures before the first success
	for _, e := range log {
		if draw.IntN(8) == 0 {
			bad[e.ID] = 1 + draw.IntN(3)
		}
	}
	effect := func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if bad[e.ID] > 0 {
			bad[e.ID]--
			return outcome.Terminal("x", errBad)
		}
		return write(ctx, tx, e)
	}
	cfg := func() inbox.Config { return quick(inbox.Config{Dedup: dedup, LockTimeout: 100 * time.Millisecond}) }
	for range 2 {
		in := w.inbox(cfg())
		in.Each(effect)
		runs(t, in)
	}
	var decided int
	var wg sync.WaitGroup
	for m := range 3 {
		mine := rand.New(rand.NewPCG(seed, uint64(10+m)))
		h := w.inbox(cfg()).Each(effect)
		wg.Go(func() {
			for range 3 { // three assignments
				mu.Lock()
				at := max(0, decided-mine.IntN(60)) // the committed offset is behind the decided events
				mu.Unlock()
				assigned(h)
				for at < len(log) {
					n := min(1+mine.IntN(25), len(log)-at)
					handleTwin(t, h, log[at:at+n])
					at += n
					mu.Lock()
					decided = max(decided, at)
					mu.Unlock()
					if mine.IntN(12) == 0 {
						break
					}
				}
			}
			for at := 0; at < len(log); at += 40 {
				handleTwin(t, h, log[at:at+40])
			}
		})
	}
	o := w.operator()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	pgtest.Await(t, "all to be applied", func() (bool, error) {
		blocked, err := o.BlockedKeys(t.Context(), admin.BlockedFilter{})
		for _, k := range blocked {
			if _, rerr := o.ReleaseKey(t.Context(), k.Tenant, k.Topic, k.Key, admin.Seen{}, "again"); rerr != nil &&
				!errors.Is(rerr, admin.ErrNotParked) {
				err = rerr
			}
		}
		select {
		case <-done:
			return len(blocked) == 0, err
		default:
			return false, err
		}
	})
	ordered(t, w, log)
	if days, _ := w.rows(); dedup == inbox.ByID && days != len(log) {
		t.Errorf("%d ids recorded, want %d", days, len(log))
	}
}
