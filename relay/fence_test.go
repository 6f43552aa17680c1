package relay_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// reused returns how many numbers of one (epoch, lane) belong to two events.
func reused(log []event.Event) (n int) {
	type place struct {
		epoch string
		lane  int16
		seq   int64
	}
	at := map[place]uuid.UUID{}
	for _, e := range log {
		p := place{e.Position.Epoch, e.Position.Lane, e.Position.Seq}
		if id, ok := at[p]; ok && id != e.ID {
			n++
		}
		at[p] = e.ID
	}
	return n
}

// fillFrom appends n events of each of 20 keys; payloads count up from the given number.
func fillFrom(t *testing.T, db *pgtest.DB, from, n int) {
	t.Helper()
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select 'payments', 'k' || k, 'T', convert_to(i::text, 'UTF8')
		from generate_series($1::int, $1::int + $2::int - 1) i, generate_series(1, 20) k order by i`, from, n)
}

func publishAll(t *testing.T, db *pgtest.DB, to *memory) {
	t.Helper()
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestP5FenceAfterARestore: the database is restored from its backup on the same server, and nothing in it shows that.
// After the fence it uses a new numbering, and events that were open or waiting in the backup are published again under
// the same ids.
func TestP5FenceAfterARestore(t *testing.T) {
	t.Parallel()
	for name, fence := range map[string]bool{"fenced": true, "not fenced, which the test must detect": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := pgtest.NewDatabase(t, migrations.Outbox), &memory{}
			fillFrom(t, db, 0, 10)
			publishAll(t, db, to)
			fillFrom(t, db, 10, 10)
			leaveOpenEntries(t, db)
			backup := db.Copy(t)
			publishAll(t, db, to)
			fillFrom(t, db, 20, 10) // appended after the backup: published, and lost by the restore
			publishAll(t, db, to)
			checkOrder(t, to.events(), 600)
			before := len(to.events())

			var f operator.FenceResult
			if fence {
				o, err := operator.New(backup.Pool, "", "kim")
				if err == nil {
					f, err = o.Fence(t.Context(), "restored the backup of last night")
				}
				if err != nil {
					t.Fatal(err)
				}
				if f.Waiting != 200 || f.Claimed == 0 || f.Forwarded || f.Before == f.Epoch || f.Epoch == "" {
					t.Errorf("fenced: %+v", f)
				}
			}
			publishAll(t, backup, to)
			fillFrom(t, backup, 20, 20) // producers continue from the backup
			publishAll(t, backup, to)
			again := to.events()[before:]
			checkOrder(t, append(to.events()[:200:200], again...), 800)
			if n := reused(to.events()); (n == 0) != fence {
				t.Errorf("%d numbers belong to two events", n)
			}
			for _, e := range again {
				if fence && e.Position.Epoch != f.Epoch {
					t.Fatalf("an event carries epoch %s after the fence, want %s", e.Position.Epoch, f.Epoch)
				}
			}
		})
	}
}

// leaveOpenEntries leaves open journal entries: a relay has claimed events, and Kafka never answers.
func leaveOpenEntries(t *testing.T, db *pgtest.DB) {
	t.Helper()
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.DrainTimeout, c.Pumps = -1, 1 })))
	<-to.entered
	_ = stop()
}

// TestP5FenceWhileRelayRuns: the relay loses its lanes, takes them again, and publishes its claimed events under the
// new epoch. Its old settle changes nothing.
func TestP5FenceWhileRelayRuns(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	fillFrom(t, db, 0, 10)
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.Pumps = 1 })))
	claimed := <-to.entered
	f, err := newOperator(t, db).Fence(t.Context(), "a drill")
	if err != nil {
		t.Fatal(err)
	}
	to.gate <- struct{}{}
	again := <-to.entered
	if again[0].Position.Epoch != f.Epoch || claimed[0].Position.Epoch != f.Before || again[0].ID != claimed[0].ID ||
		again[0].Position.Seq != claimed[0].Position.Seq {
		t.Errorf("claimed at %+v and again at %+v, fenced %+v", claimed[0].Position, again[0].Position, f)
	}
	close(to.gate)
	go func() {
		for range to.entered {
		}
	}()
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	checkOrder(t, to.events(), 200)
}

func TestP5FenceMovesSequenceOnlyForward(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before  string
		want    int64
		forward bool
	}{
		"below its table":   {`select setval('outbox_event_id_seq', 7)`, 100, true},
		"never called":      {`select setval('outbox_event_id_seq', 1, false)`, 100, true},
		"ahead":             {`select setval('outbox_event_id_seq', 5000)`, 5000, false},
		"below a parked id": {`update outbox_event set tenant = tenant`, 900, true},
		"below the journal": {`insert into outbox_claim values (1, 5, '{900}', '{5}')`, 900, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			fill(t, db, 100, 10)
			db.Exec(t, c.before)
			if strings.Contains(name, "parked") {
				parkedRow(t, db, 900, "k", false, false)
			}
			f, err := newOperator(t, db).Fence(t.Context(), "copied by logical replication")
			if err != nil {
				t.Fatal(err)
			}
			if got := pgtest.One[int64](t, db, `select last_value from outbox_event_id_seq`); got != c.want ||
				f.Forwarded != c.forward {
				t.Errorf("the sequence is at %d, want %d: %+v", got, c.want, f)
			}
			db.Exec(t, `insert into outbox_event (topic, type) values ('t', 'T')`)
			if got := pgtest.One[int64](t, db, `select max(id) from outbox_event`); got != c.want+1 {
				t.Errorf("the next event has id %d", got)
			}
		})
	}
}

func TestP5FenceIsAudited(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	if _, err := o.Fence(t.Context(), " "); err == nil {
		t.Error("a fence without a reason was accepted")
	}
	epoch := `select outbox_id || '.' || incarnation from outbox_meta`
	before := pgtest.One[string](t, db, epoch)
	f, err := o.Fence(t.Context(), "restored")
	if err != nil || f.Before != before || f.Epoch != pgtest.One[string](t, db, epoch) || f.Epoch == before {
		t.Errorf("%+v, %v", f, err)
	}
	second, err := o.Fence(context.WithoutCancel(t.Context()), "restored")
	if err != nil || second.Epoch == f.Epoch || second.Before != f.Epoch {
		t.Errorf("a second fence within the same second: %+v, %v", second, err)
	}
	if log, err := o.Audit(t.Context(), 10); err != nil || len(log) != 2 || log[0].Action != "fence" ||
		!strings.Contains(string(log[0].Detail), second.Epoch) {
		t.Errorf("audit %+v: %v", log, err)
	}
}
