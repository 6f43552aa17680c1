package relay_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestP8DueEventsMoveInOrder: behind the key's earlier events, and by due time, not by the time of scheduling. Order
// counts from the move.
func TestP8DueEventsMoveInOrder(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload, event_time)
		select now() - make_interval(secs => due), 'payments', 'k', 'T', payload::bytea,
			timestamptz '2026-01-02 03:04:05+00'
		from (values (1, 0, '4'), (2, 3600, '1'), (3, 60, '3'), (4, 3600, '2'), (5, -3600, '6')) v (n, due, payload)
		order by n`)
	f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '0')`)
	f.drain()
	f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '5')`)
	f.drain()
	checkOrder(t, f.to.events(), 6)
	checkNumbers(t, f.to.events())
	for _, e := range f.to.events()[1:5] {
		if _, ok := event.IDTime(e.ID); !ok || !e.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
			t.Errorf("a scheduled event was published as %+v", e)
		}
	}
	if n := pgtest.One[int](t, f.db, `select count(*) from outbox_scheduled`); n != 1 {
		t.Errorf("%d events are scheduled, want the future one", n)
	}
}

// TestP8ManyDueEvents: more events than a claim takes are moved, with and without keys, and with ids that the move
// makes.
func TestP8ManyDueEvents(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		select now() - interval '1 hour' + g * interval '1 ms', 'payments', 'k' || (g % 20), 'T',
			convert_to((g / 20)::text, 'UTF8') from generate_series(0, 1999) g`)
	db.Exec(t,
		`insert into outbox_scheduled (due, topic, type) select now(), 'payments', 'T' from generate_series(1, 100)`)
	moved := make(chan int, 10_000)
	stop := startRelay(t, newRelay(t, db, to, config(
		func(c *relay.Config) { c.ClaimEvents = 64; c.Observer.Due = func(n int) { moved <- n } })))
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_scheduled)`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var keyed []event.Event
	ids := map[uuid.UUID]bool{}
	for _, e := range to.events() {
		ids[e.ID] = true
		if e.Key != "" {
			keyed = append(keyed, e)
		}
	}
	checkOrder(t, keyed, 2000)
	close(moved)
	sum := 0
	for n := range moved {
		sum += n
	}
	if len(ids) != 2100 || sum != 2100 {
		t.Errorf("%d events, %d moved, want 2100", len(ids), sum)
	}
}

// TestP8NotBefore: a running relay wakes up for a due event, and never too early by the database's clock.
func TestP8NotBefore(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	early := make(chan bool, 10)
	to.verdict = func(int, event.Event) error {
		early <- pgtest.One[bool](t, db, `select clock_timestamp() < due from due`)
		return nil
	}
	db.Exec(t, `create table due (due timestamptz)`)
	stop := startRelay(t, newRelay(t, db, to, config()))
	pgtest.AwaitSQL(t, db, `select count(owner) = 32 from outbox_lane`)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, event.Event{
			Topic: "payments", Key: "k", Type: "T", Payload: []byte("0"),
			NotBefore: time.Now().Add(time.Hour),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := operator.ReadStatus(t.Context(), db.Pool, ""); err != nil || st.Backlog != 0 {
		t.Errorf("status %+v, error %v", st, err)
	}
	// Only now, however long that took, is its time near.
	db.Exec(t, `with soon as (insert into due values (clock_timestamp() + interval '400 ms') returning due)
		update outbox_scheduled s set due = soon.due from soon`)
	if <-early {
		t.Error("it was published before its time")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 1)
}

func TestP8StatusCountsScheduledEvents(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t,
		`insert into outbox_scheduled (due, topic, type) values (now() - interval '1 s', 'a', 'T'),
			(now() + interval '1 h', 'a', 'T')`)
	st, err := operator.ReadStatus(t.Context(), db.Pool, "")
	if err != nil || st.Scheduled.Events != 2 || st.Scheduled.Overdue != 1 || st.Scheduled.Next == nil ||
		st.Backlog != 0 {
		t.Errorf("status %+v, error %v", st, err)
	}
}

// TestP8StaleOwnerMovesNothing: a relay whose fence was raised moves no event.
func TestP8StaleOwnerMovesNothing(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	f.db.Exec(t, `update outbox_lane set fence = fence + 1`)
	f.db.Exec(t, `insert into outbox_scheduled (due, topic, key, type) values (now(), 'a', 'k', 'T')`)
	_, err := f.Step(t.Context())
	f.must(err)
	if n := pgtest.One[int](t, f.db, `select count(*) from outbox_scheduled`); n != 1 {
		t.Error("a stale owner moved an event")
	}
}

// TestP8UnknownCommitOfMove: whether the COMMIT happened or not, each event is published once and in order.
func TestP8UnknownCommitOfMove(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]pgtest.Action{
		"cut before": pgtest.CutBefore, "reply dropped": pgtest.DropReply, "late": pgtest.Late,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			proxy := pgtest.NewProxy(t, db.URL)
			trap := proxy.On(commitAfter("move due"), 0, action)
			r, err := relay.New(poolAt(t, proxy.URL()), to, config(func(c *relay.Config) { c.Pumps = 1 }))
			if err != nil {
				t.Fatal(err)
			}
			db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
				select now() - interval '1 h' + g * interval '1 ms', 'payments', 'k' || (g % 10), 'T',
					convert_to((g / 10)::text, 'UTF8') from generate_series(0, 199) g`)
			stop := startRelay(t, r)
			<-trap.Fired()
			trap.Release()
			pgtest.AwaitSQL(t, db, `select not exists (select from outbox_scheduled)`)
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			checkNumbers(t, to.events())
			checkOrder(t, to.events(), 200)
		})
	}
}

func TestP8ListAndCancel(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		select now() + (10 - g) * interval '1 hour', case when g < 4 then 'a' else 'b' end, 'k' || g % 2, 'T', 'body'
		from generate_series(1, 5) g`)
	key := "k1"
	list, err := o.Scheduled(t.Context(), operator.ScheduledFilter{Topic: "a", Key: &key})
	if err != nil || len(list) != 2 || list[0].Seq != 3 || list[1].Seq != 1 || list[0].MessageID != nil ||
		list[0].Bytes != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := o.CancelScheduled(t.Context(), 3, list[0].Due, "the customer paid"); err != nil {
		t.Error(err)
	}
	if err := o.CancelScheduled(t.Context(), 3, list[0].Due, "again"); !errors.Is(err, operator.ErrNotScheduled) {
		t.Errorf("error %v", err)
	}
	if list, err = o.Scheduled(t.Context(), operator.ScheduledFilter{Limit: 3}); err != nil || len(list) != 3 ||
		list[0].Seq != 5 {
		t.Errorf("%+v, %v", list, err)
	}
	if log, err := o.Audit(t.Context(), 10); err != nil || len(log) != 1 || log[0].Action != "cancel scheduled" ||
		log[0].Topic != "a" {
		t.Errorf("audit %+v, %v", log, err)
	}
}

// TestP8CancelAll: all of a topic, or of a key or tenant in it, is deleted in parts, each with its row in the audit.
// What is not meant stays.
func TestP8CancelAll(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, tenant, type)
		select now() + g * interval '1 minute', 'a', case when g > 0 then 'k' || g % 50 else '' end,
			case when g % 2 = 0 then '' else 'acme' end, 'T' from generate_series(0, 10100) g`)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type)
		values (now() + interval '1 hour', 'b', 'k1', 'T')`)
	left := func(want int) {
		t.Helper()
		if n := pgtest.One[int](t, db, `select count(*) from outbox_scheduled where topic = 'a'`); n != want {
			t.Errorf("%d are left, want %d", n, want)
		}
	}
	k1, none, acme := "k1", "", "acme"
	for _, c := range []struct {
		key, tenant  *string
		events, left int64
		more         bool
	}{
		{&none, nil, 1, 10_100, false}, // the one without a key
		{&k1, &none, 0, 10_100, false}, // odd numbers have a tenant
		{&k1, &acme, 202, 9_898, false},
		{nil, &none, 5_050, 4_848, false},
	} {
		events, more, err := o.CancelAllScheduled(t.Context(), "a", c.key, c.tenant, "the plan changed")
		if events != c.events || more != c.more || errors.Is(err, operator.ErrNotScheduled) != (c.events == 0) {
			t.Errorf("%+v: %d events, more: %v, error %v", c, events, more, err)
		}
		left(int(c.left))
	}
	db.Exec(t, `insert into outbox_scheduled (due, topic, type)
		select now() + interval '1 day', 'a', 'T' from generate_series(1, 10000)`)
	for _, c := range []struct {
		events int64
		more   bool
	}{{operator.CancelAllMost, true}, {4_848, false}, {0, false}} {
		events, more, err := o.CancelAllScheduled(t.Context(), "a", nil, nil, "the plan changed")
		if events != c.events || more != c.more || errors.Is(err, operator.ErrNotScheduled) != (c.events == 0) {
			t.Errorf("%+v: %d events, more: %v, error %v", c, events, more, err)
		}
	}
	left(0)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_scheduled where topic = 'b'`); n != 1 {
		t.Error("an event of another topic is gone")
	}
	log, err := o.Audit(t.Context(), 10)
	if err != nil || len(log) != 5 {
		t.Fatalf("audit %+v, %v", log, err)
	}
	for _, e := range log {
		if e.Action != "cancel all scheduled" || e.Topic != "a" || e.Reason != "the plan changed" {
			t.Errorf("audit %+v", e)
		}
	}
	if e := log[3]; e.Key != "k1" || e.Tenant != "acme" {
		t.Errorf("audit of a key and a tenant: %+v", e)
	}
}

// TestP8CancelAllWaitsForAMove: events that a relay moves at this moment are not deleted, and are not counted.
func TestP8CancelAllWaitsForAMove(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o := newOperator(t, db)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type)
		values (now(), 'a', 'k', 'T'), (now() + interval '1 hour', 'a', 'k', 'T')`)
	move := db.Connect(t) // as a claim does, under the lane's lock
	for _, sql := range []string{
		`begin`, `select from outbox_lane order by lane for update`,
		`delete from outbox_scheduled where due <= now()`,
	} {
		if _, err := move.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	type result struct {
		events int64
		err    error
	}
	done := make(chan result, 1)
	go func() {
		events, _, err := o.CancelAllScheduled(t.Context(), "a", nil, nil, "r")
		done <- result{events, err}
	}()
	pgtest.AwaitSQL(t, db, `select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))`,
		int32(move.PgConn().PID()))
	if _, err := move.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil || r.events != 1 {
		t.Errorf("%d events, error %v", r.events, r.err)
	}
}
