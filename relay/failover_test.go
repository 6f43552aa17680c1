package relay_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// promoteStandby makes the outbox that of a promoted standby, which lacks the changes that the given statements undo.
func (f *floors) promoteStandby(lacking ...string) {
	f.t.Helper()
	f.db.Exec(f.t, `update outbox_meta set timeline = 'FFFFFFFF'`)
	for _, sql := range lacking {
		f.db.Exec(f.t, sql)
	}
}

func (f *floors) append() {
	f.t.Helper()
	f.db.Exec(f.t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '0')`)
}

// TestP5_BlockEndsWithIncarnation: a standby that lacks a lane's last reservation of numbers takes over, and the relay
// keeps its lanes. It must not use the rest of its block: the next block of the new incarnation begins below it.
func TestP5_BlockEndsWithIncarnation(t *testing.T) {
	t.Parallel()
	for name, hide := range map[string]func(f *floors){
		"behind a pooler":                     func(*floors) {},
		"over a new connection of the pump's": func(f *floors) { f.must(f.Reconnect(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := driven(t, outboxDB(t))
			f.append()
			f.drain()
			f.promoteStandby(`update outbox_lane set reserved_seq = reserved_seq - 1048576 where reserved_seq > 0`)
			hide(f)
			for range 3 {
				f.append()
				f.drain()
			}
			// the fences rise, and new blocks begin
			f.db.Exec(t, `update relay_member set lease_until = now() - interval '1 s'`)
			f.db.Exec(t, `update outbox_lane set lease_until = now() - interval '1 s'`)
			f.must(f.Beat(t.Context()))
			for range 3 {
				f.append()
				f.drain()
			}
			log := f.to.events()
			checkNumbers(t, log)
			if len(log) != 7 || log[0].Position.Epoch == log[1].Position.Epoch ||
				log[1].Position.Epoch != log[6].Position.Epoch {
				t.Errorf("published: %+v", log)
			}
		})
	}
}

// TestP5_NewIncarnationIsNoCrash: an incarnation begins while a claim waits for its lanes, and the heartbeat is the
// first to meet it. The relay does not log a crash of the database.
func TestP5_NewIncarnationIsNoCrash(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	f := driven(t, outboxDB(t), func(c *relay.Config) { c.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	f.append()
	operator := f.begin(f.db, `select from outbox_lane for update`)
	stepped := make(chan error, 1)
	go func() {
		_, err := f.Step(t.Context())
		stepped <- err
	}()
	pgtest.AwaitBlocking(t, f.db, operator.PgConn().PID())
	f.db.Exec(t, `update outbox_meta set incarnation = incarnation + 1`)
	f.must(f.BeatBeside(t.Context()))
	f.exec(operator, "rollback")
	f.must(<-stepped)
	if n := f.to.count(); n != 1 {
		t.Errorf("%d events published, want 1", n)
	}
	if strings.Contains(said.String(), "crashed") {
		t.Errorf("a new incarnation is logged as a crash: %s", &said)
	}
}

// TestP3_2_FailoverReopensEntry: behind a pooler, a standby takes over on which an entry is open that the relay settled
// some claims ago.
func TestP3_2_FailoverReopensEntry(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.append()
	f.drain()
	f.append()
	f.drain()
	first, second := f.to.events()[0], f.to.events()[1]
	const row = `insert into outbox_event (id, message_id, topic, key, type, payload) overriding system value select $1,
		$2, 'payments', 'k', 'T', '0'`
	f.db.Exec(t, row, 1, first.ID)
	f.db.Exec(t, row, 2, second.ID)
	f.db.Exec(t, `insert into outbox_claim values ($1, $2, '{1}', array[$2::bigint])`, first.Position.Lane,
		first.Position.Seq)
	f.promoteStandby()
	f.append()
	f.drain()
	log := f.to.events()
	checkNumbers(t, log)
	if len(log) != 5 || log[2].ID != first.ID || log[2].Position.Seq != first.Position.Seq || log[3].ID != second.ID {
		t.Errorf("published: %+v", log)
	}
	if n := pgtest.One[int](t, f.db,
		`select (select count(*) from outbox_claim) + (select count(*) from outbox_event)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// TestP3_5_SettleEndsWithIncarnation: a standby that lacks a relay's take-over of a lane takes over. Another relay
// claims there. The first relay takes the lane again, under the fence that it had, while it still publishes: it must
// not settle the other's entry, which has the same number.
func TestP3_5_SettleEndsWithIncarnation(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	d, err := relay.Drive(t.Context(), newRelay(t, db, to, config(func(c *relay.Config) { c.Lease = time.Hour })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	f := &floors{Driver: d, t: t, db: db, to: to}
	f.append()
	stepped := make(chan error, 1)
	go func() { _, err := d.Step(t.Context()); stepped <- err }()
	<-to.entered
	f.append()
	db.Exec(t,
		`update outbox_claim set ids = ids || e.id, seqs = seqs || first_seq + 1 from outbox_event e
			where e.id <> all (ids)`)
	db.Exec(t, `update outbox_meta set incarnation = incarnation + 1`)
	close(to.gate)
	<-stepped // successful or not
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 2 {
		t.Fatalf("%d of the 2 events of another relay's claim are left", n)
	}
	to.entered = nil
	f.drain()
	if n := to.count(); n != 3 {
		t.Errorf("%d events are published, want the first one twice and the second one", n)
	}
}

// TestP4HeldAfterAFailover: a topic is refused, its events are held, and a standby takes over. When the topic is
// accepted again the events are published, although no new event makes the relay claim.
func TestP4HeldAfterAFailover(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	refused := true
	f.to.verdict = func(int, event.Event) error {
		if refused {
			return refusedTopic
		}
		return nil
	}
	f.append()
	f.drain()
	f.promoteStandby()
	refused = false
	f.must(f.Try(t.Context(), "payments"))
	f.must(f.Work(t.Context()))
	log := f.to.events()
	checkNumbers(t, log)
	if n := pgtest.One[int](t, f.db, `select count(*) from outbox_held`); n != 0 || len(log) == 0 {
		t.Errorf("%d events are published, and %d are still held", len(log), n)
	}
}

// TestP4FailoverRestoresHeldEvent: behind a pooler, a standby takes over on which an event is held that was published
// and settled. It is published again after a heartbeat, although nothing is appended.
func TestP4FailoverRestoresHeldEvent(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.append()
	f.drain()
	f.must(f.Work(t.Context()))
	sent := f.to.events()[0]
	f.db.Exec(t,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, maybe, message_id, source, tenant, key, type,
				content_type, created_at)
		values ($1, 1, 'payments', 0, $2, true, false, $3, '', '', 'k', 'T', 'c', now())`, sent.Position.Lane,
		sent.Position.Seq, sent.ID)
	f.promoteStandby()
	f.must(f.Beat(t.Context()))
	f.must(f.Work(t.Context()))
	log := f.to.events()
	checkNumbers(t, log)
	if n := pgtest.One[int](t, f.db, `select count(*) from outbox_held`); n != 0 || len(log) != 2 {
		t.Errorf("%d events are published, and %d are still held", len(log), n)
	}
}
