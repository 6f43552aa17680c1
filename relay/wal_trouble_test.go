package relay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWALRefusedEventsPark: the lane of a refused event goes back to the table, and the event's key is parked there.
// The other lanes stay with the WAL. After the release the lane comes back.
func TestWALRefusedEventsPark(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(2)
	b.set(refuseK3("25"))
	stop := startRelay(t, newRelay(t, db, b, config(fromWAL)))
	awaitStreaming(t, db)
	for from := range 4 {
		appendTo(t, db, "payments", 200, 20, 10*from)
	}
	awaitDrained(t, db)
	pgtest.AwaitSQL(t, db, `select count(*) = 31 from outbox_streamed`)
	for k := range 20 {
		want := 40
		if k == 3 {
			want = 25
		}
		checkKey(t, b, fmt.Sprint("k", k), want)
	}
	b.set(nil)
	if _, err := newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended"); err != nil {
		t.Fatal(err)
	}
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 200, 20, 40)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for k := range 20 {
		checkKey(t, b, fmt.Sprint("k", k), 50)
	}
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n != 1 {
		t.Errorf("incarnation %d: a refusal is certain and needs no new numbering", n)
	}
}

// TestWALHoldsAPartition: lanes with events for a partition that does not answer go back to the table, and the events
// are held there. They may have been written, so a new numbering begins for consumers in watermark mode.
func TestWALHoldsAPartition(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(4)
	stop := startRelay(t, newRelay(t, db, b, config(fromWAL, quickHold)))
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 400, 40, 0)
	awaitDrained(t, db)
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway}
		}
		return answer{}
	})
	for from := 1; from < 4; from++ {
		appendTo(t, db, "payments", 400, 40, 10*from)
	}
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_held`); n == 0 || n == 1200 {
		t.Errorf("%d events are held", n)
	}
	b.set(nil)
	awaitEmpty(t, db)
	awaitStreaming(t, db)
	appendTo(t, db, "payments", 400, 40, 40)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, b, 40, 50)
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n == 1 {
		t.Error("events that may have been written got other numbers in the same numbering")
	}
}

// TestWALPausedTopic: no event of a paused topic is sent, and all are sent in order once it is resumed.
func TestWALPausedTopic(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Lease = time.Minute })))
	awaitStreaming(t, db)
	o := newOperator(t, db)
	fill(t, db, 100, 10)
	awaitDrained(t, db)
	if err := o.PauseTopic(t.Context(), "payments", "a test"); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T',
				convert_to($1, 'UTF8') from generate_series(0, 9) g`, fmt.Sprint(10+i))
	}
	awaitDrained(t, db)
	if n := to.count(); n != 100 {
		t.Fatalf("%d events of a paused topic were sent", n-100)
	}
	if err := o.ResumeTopic(t.Context(), "payments", "the end"); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the paused events", func() (bool, error) { return to.count() == 150, nil })
	awaitStreaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if again := checkOrder(t, to.events(), 150); again > 0 {
		t.Errorf("%d events were sent twice", again)
	}
	if n := checkByNumber(t, to.events()); n != 1 {
		t.Errorf("%d numberings", n)
	}
}

// lateProbe is a TracerProvider that calls a function before each publish.
type lateProbe struct {
	noop.TracerProvider
	report func()
}

// Tracer implements trace.TracerProvider.
func (p lateProbe) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return lateTracer{report: p.report}
}

type lateTracer struct {
	noop.Tracer
	report func()
}

// Start implements trace.Tracer.
func (l lateTracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	l.report()
	return l.Tracer.Start(ctx, name, o...)
}

// TestWALUsesItsOwnReadOfPauses: the reader of the WAL and the prober read outbox_paused_topic at different times.
// Events that were committed after a pause are not sent when a probe from before the pause reports later.
func TestWALUsesItsOwnReadOfPauses(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	var r *relay.Relay
	r = newRelay(t, db, to, config(fromWAL, func(c *relay.Config) {
		c.TracerProvider = lateProbe{report: func() { relay.Unpause(r) }}
	}))
	stop := startRelay(t, r)
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	awaitDrained(t, db)
	if err := newOperator(t, db).PauseTopic(t.Context(), "payments", "a test"); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '1')`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := to.count(); n != 10 {
		t.Errorf("%d events of a paused topic were sent", n-10)
	}
}

// TestWALPauseBeforeItIsVisible: a pause that waits for the synchronous standby is in the WAL, but in no snapshot.
// Events that are committed after it are not sent.
func TestWALPauseBeforeItIsVisible(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	t.Parallel()
	db := pgtest.NewServer(t).Database(t, migrations.Outbox)
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Lease = time.Minute })))
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	awaitDrained(t, db)
	db.RequireStandby(t, pgtest.Nobody)
	paused := make(chan error, 1)
	go func() { paused <- newOperator(t, db).PauseTopic(t.Context(), "payments", "a test") }()
	pgtest.AwaitSQL(t, db,
		`select exists (select from pg_stat_activity where wait_event = 'SyncRep' and query ilike 'commit')`)
	local := db.Connect(t)
	for _, sql := range []string{
		`set synchronous_commit = local`,
		`insert into outbox_event (topic, key, type, payload) values ('payments', 'k0', 'T', '1')`,
	} {
		if _, err := local.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	awaitStatus(t, db, slot)
	db.Exec(t, `alter system reset synchronous_standby_names`)
	db.Exec(t, `select pg_reload_conf()`)
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, db)
	if n := to.count(); n != 10 {
		t.Errorf("%d events of a paused topic were sent", n-10)
	}
	if err := newOperator(t, db).ResumeTopic(t.Context(), "payments", "the end"); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the paused events", func() (bool, error) { return to.count() == 11, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestWALStandbyAppears: when commits are set to wait for a synchronous standby, publishing soon does, too, without a
// restart.
func TestWALStandbyAppears(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	t.Parallel()
	db := pgtest.NewServer(t).Database(t, migrations.Outbox)
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Lease = time.Minute })))
	awaitStreaming(t, db)
	db.RequireStandby(t, pgtest.Nobody)
	local := db.Connect(t)
	if _, err := local.Exec(t.Context(), `set synchronous_commit = local`); err != nil {
		t.Fatal(err)
	}
	n := 0
	pgtest.Await(t, "a publish that waits for the standby", func() (bool, error) {
		if _,
			err := local.Exec(t.Context(),
			`insert into outbox_event (topic, key, type, payload) values ('t', 'k', 'T', $1)`,
			fmt.Append(nil, n)); err != nil {
			return false, err
		}
		n++
		return pgtest.One[bool](t, db, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`), nil
	})
	db.Exec(t, `alter system reset synchronous_standby_names`)
	db.Exec(t, `select pg_reload_conf()`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), n)
}

// TestWALScheduled: scheduled events are published when they are due, through the WAL.
func TestWALScheduled(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	// No heartbeat finds them first.
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Lease = 10 * time.Minute })))
	awaitStreaming(t, db)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload)
		select now() + interval '300 ms' + g * interval '10 ms', 'payments', 'k' || g % 3, 'T',
			convert_to((g / 3)::text, 'UTF8') from generate_series(0, 29) g`)
	pgtest.Await(t, "the due events", func() (bool, error) { return to.count() == 30, nil })
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 30)
	if n := fromLog(t, to.events()); n != 30 {
		t.Errorf("%d events came from the WAL, want 30", n)
	}
}

// TestWALDropped: DropWAL refuses while the slot is read, and later drops both slot and publication.
func TestWALDropped(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	stop := startRelay(t, newRelay(t, db, &memory{}, config(fromWAL)))
	awaitStreaming(t, db)
	st, err := operator.ReadStatus(t.Context(), db.Pool, "")
	if err != nil || st.WAL == nil || !st.WAL.Active || st.WAL.Slot != slot || st.WAL.Lanes != 32 ||
		st.WAL.State != "reserved" && st.WAL.State != "extended" || st.WAL.Reader == "" { // other tests write WAL, too
		t.Errorf("status %+v: %v", st.WAL, err)
	}
	if _, err := operator.DropWAL(t.Context(), db.Pool, ""); err == nil {
		t.Error("the slot was dropped while a relay reads it")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	awaitUnread(t, db, slot)
	if _, err := operator.DropWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	if pgtest.One[bool](t, db,
		`select exists (select from pg_replication_slots where slot_name = $1) or exists (select from pg_publication
				where pubname = $1)
		or exists (select from outbox_wal where slot <> '')`, slot) {
		t.Error("the slot or the publication is left")
	}
}

// TestWALReleaseAfterTakeOver: an event that was parked alone is released, although its lane is published from the WAL
// by a relay that has never claimed in it.
func TestWALReleaseAfterTakeOver(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases")
	}
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(2)
	b.set(func(e *event.Event, _ int32) answer {
		if string(e.Payload) == "bad" {
			return tooLarge
		}
		return answer{}
	})
	proxy := pgtest.NewProxy(t, db.URL)
	first, err := relay.New(poolAt(t, proxy.URL()), b, config(fromWAL))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, first)
	awaitStreaming(t, db)
	db.Exec(t, `insert into outbox_event (topic, type, payload) values ('payments', 'T', 'bad')`)
	pgtest.AwaitSQL(t, db, `select count(*) = 1 from outbox_parked`)
	awaitStreaming(t, db)
	proxy.Refuse(true)
	proxy.CutAll()
	_ = stop()
	stop = startRelay(t, newRelay(t, db, b, config(fromWAL, func(c *relay.Config) { c.Name = "heir" })))
	awaitHeir(t, db, "heir",
		`select count(*) = 32 from outbox_lane l join relay_member m on m.owner = l.owner
			join outbox_wal w on w.owner = m.owner and m.name = 'heir'`)
	b.set(nil)
	list, err := newOperator(t, db).Parked(t.Context(), admin.ParkedFilter{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d parked: %v", len(list), err)
	}
	if err := newOperator(t, db).ReleaseEvent(t.Context(), list[0].ID, "mended"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_parked)`)
	awaitStreaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestWALPausedAfterTakeOver: published events that a relay has not deleted come again to the next relay. Their topic
// is paused now, so it must not send them, and gives their lanes back to the table. Under other numbers of the same
// numbering they would be applied twice.
func TestWALPausedAfterTakeOver(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases")
	}
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	proxy := pgtest.NewProxy(t, db.URL)
	first, err := relay.New(poolAt(t, proxy.URL()), to, config(fromWAL))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, first)
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	<-to.entered
	keeper := db.Connect(t)
	rows, err := keeper.Begin(t.Context())
	if err == nil {
		_, err = rows.Exec(t.Context(), `select from outbox_event for update`) // keeps the relay from deleting the rows
	}
	if err != nil {
		t.Fatal(err)
	}
	close(to.gate)
	go func() {
		for range to.entered { //nolint:revive // ignore all calls
		}
	}()
	pgtest.AwaitBlocking(t, db, keeper.PgConn().PID())
	proxy.Refuse(true)
	proxy.CutAll()
	// Its process would end the session in the end.
	db.Exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
		and $1 = any (pg_blocking_pids(pid))`,
		int32(keeper.PgConn().PID()))
	pgtest.AwaitSQL(t, db, `select not exists (select from pg_stat_activity where datname = current_database()
		and $1 = any (pg_blocking_pids(pid)))`,
		int32(keeper.PgConn().PID()))
	_ = stop()
	if err := rows.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 10 || to.count() != 10 {
		t.Fatalf("%d rows are left, %d events published", n, to.count())
	}
	o := newOperator(t, db)
	if err := o.PauseTopic(t.Context(), "payments", "a test"); err != nil {
		t.Fatal(err)
	}
	stop = startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Name = "heir" })))
	awaitHeir(t, db, "heir", drained)
	if err := o.ResumeTopic(t.Context(), "payments", "the end"); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the paused events", func() (bool, error) { return to.count() == 20, nil })
	awaitStreaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	log := to.events()
	checkOrder(t, log, 10)
	if n := checkByNumber(t, log); n != 2 {
		t.Errorf("%d numberings", n)
	}
}

// TestWALStoppedWhileCatchingUp: a relay takes over, and is stopped before it has read up to the WAL's end at its
// start. It reads up to there, and gives its lanes back to the table, from which others publish under the same
// numbering.
func TestWALStoppedWhileCatchingUp(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases")
	}
	t.Parallel()
	db, _ := walDB(t)
	proxy := pgtest.NewProxy(t, db.URL)
	before := &memory{}
	first, err := relay.New(poolAt(t, proxy.URL()), before, config(fromWAL))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, first)
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	awaitDrained(t, db)
	proxy.Refuse(true)
	proxy.CutAll()
	_ = stop()
	const each = 20
	for n := 1; n < each; n++ {
		db.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T',
				convert_to($1, 'UTF8') from generate_series(0, 9) g`, fmt.Sprint(n))
	}
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	second := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Name, c.ClaimEvents = "heir", 32 }))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- second.Run(ctx) }()
	awaitHeir(t, db, "heir", `select count(owner) = 32 and count(distinct owner) = 1 from outbox_lane
		where owner in (select owner from relay_member where name = 'heir')`)
	<-to.entered
	cancel()
	go func() {
		for range to.entered { //nolint:revive // ignore all calls
		}
	}()
	close(to.gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_streamed`); n != 0 {
		t.Errorf("%d lanes are left to the WAL", n)
	}
	after := &memory{}
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', convert_to($1, 'UTF8')
			from generate_series(0, 9) g`, fmt.Sprint(each))
	stop = startRelay(t, newRelay(t, db, after, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := append(append(before.events(), to.events()...), after.events()...)
	checkOrder(t, log, 10*(each+1))
	if n := checkByNumber(t, log); n != 1 {
		t.Errorf("%d numberings", n)
	}
}
