package relay_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
)

const stormKeys = 40

// TestEmitInAStorm: producers in conflict on some keys emit and append as it comes, while partitions go away, records are refused, a
// topic is paused, connections die and relays come and go. Every key's first occurrences are in the order of its versions, and
// nothing is lost or stands below a floor.
func TestEmitInAStorm(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	db.Exec(t, `create table aggregate (key text primary key, version int not null default 0)`)
	db.Exec(t, `insert into aggregate (key) select 'k' || g from generate_series(0, $1::int - 1) g`, stormKeys)
	b := newBroker(4)
	proxy := pgtest.NewProxy(t, db.URL)
	strict := func(c *relay.Config) {
		c.FloorEvery, c.RescanEvery = 1, 1
		c.Observer.BelowFloor = func(lane int16) { t.Errorf("an event stood below the floor of lane %d", lane) }
	}
	first, err := relay.New(poolAt(t, proxy.URL()), b, config(emitted, quick, strict))
	if err != nil {
		t.Fatal(err)
	}
	_ = running(t, first)
	open(t, db)
	second := func() func() error {
		return running(t, newRelay(t, db, b, config(emitted, quick, strict, func(c *relay.Config) { c.Name = "second" })))
	}
	stop := second()
	o := operator(t, db)
	total := 0
	troubles := []func(){
		func() {},
		func() { // a partition goes away
			b.set(func(_ *event.Event, partition int32) answer {
				if partition == 1 {
					return answer{err: errAway}
				}
				return answer{}
			})
			pgtest.AwaitSQL(t, db, `select exists (select from outbox_held)`)
			b.set(nil)
		},
		func() { // some keys are refused, and released while more comes
			b.set(func(e *event.Event, _ int32) answer {
				if e.Key == "k3" || e.Key == "k17" {
					return tooLarge
				}
				return answer{}
			})
			pgtest.AwaitSQL(t, db, `select count(*) = 2 from outbox_parked_key`)
			b.set(nil)
			for _, key := range []string{"k3", "k17"} {
				if _, err := o.ReleaseKey(t.Context(), "", "payments", key, "a test"); err != nil {
					t.Error(err)
				}
			}
		},
		func() { proxy.CutAll() },
		func() { // the topic is paused
			if err := o.PauseTopic(t.Context(), "payments", "a test"); err != nil {
				t.Error(err)
			}
			pgtest.AwaitSQL(t, db, `select exists (select from outbox_held) or exists (select from outbox_event)`)
			if err := o.ResumeTopic(t.Context(), "payments", "a test"); err != nil {
				t.Error(err)
			}
		},
		func() { // whichever reads, it ends in an orderly way
			if err := stop(); err != nil {
				t.Error(err)
			}
			stop = second()
		},
		func() { proxy.Refuse(true); proxy.CutAll() },
	}
	for i, trouble := range troubles {
		var work sync.WaitGroup
		over, made := make(chan struct{}), make([]int, 8)
		for p := range made {
			work.Go(func() { made[p] = storm(t, db, rand.New(rand.NewPCG(uint64(i), uint64(p))), 60, over) })
		}
		func() {
			defer close(over)
			trouble()
		}()
		work.Wait()
		for _, n := range made {
			total += n
		}
	}
	b.set(nil)
	arrived(t, b, total)
	if err := stop(); err != nil {
		t.Error(err)
	}
	for k := range stormKeys {
		key := "k" + strconv.Itoa(k)
		for i, payload := range b.firsts(key) {
			if payload != strconv.Itoa(i+1) {
				t.Errorf("key %s: version %s first occurs where %d was due", key, payload, i+1)
				break
			}
		}
	}
	emittedOnes := 0
	for _, e := range b.events() {
		if e.Position.Lane == -1 && strings.HasPrefix(e.Type, "emitted") {
			emittedOnes++
		}
	}
	t.Logf("%d events, %d of which were emitted and came from the WAL", total, emittedOnes)
	if emittedOnes == 0 {
		t.Error("nothing that was emitted came from the WAL")
	}
}

// storm has one producer make n changes, and more until the trouble is over, for it may wait to be met by some. Each is behind the lock
// of its key, some of them in savepoints that are rolled back first.
func storm(t *testing.T, db *pgtest.DB, rnd *rand.Rand, n int, over <-chan struct{}) (made int) {
	for ; ; made++ {
		if made >= n {
			select {
			case <-over:
				return made
			default:
			}
		}
		key := "k" + strconv.Itoa(rnd.IntN(stormKeys))
		err := pgx.BeginFunc(context.Background(), db.Pool, func(tx pgx.Tx) error {
			ctx := context.Background()
			var version int
			if err := tx.QueryRow(ctx, `update aggregate set version = version + 1 where key = $1 returning version`, key).Scan(&version); err != nil {
				return err
			}
			do, e := outbox.Append, event.Event{Topic: "payments", Key: key, Type: "appended", Payload: []byte(strconv.Itoa(version))}
			if rnd.IntN(3) > 0 {
				do, e.Type = outbox.Emit, "emitted"
			}
			if rnd.IntN(8) == 0 {
				inner, err := tx.Begin(ctx)
				if err != nil {
					return err
				}
				if err := do(ctx, inner, e); err != nil {
					return err
				}
				if err := inner.Rollback(ctx); err != nil {
					return err
				}
			}
			return do(ctx, tx, e)
		})
		if err != nil {
			t.Error(err)
			return made
		}
	}
}
