package inbox_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

const oneDay = 24 * time.Hour

// noon returns noon of today plus days, by the database's clock.
func (w *world) noon(days int) time.Time {
	w.t.Helper()
	now := pgtest.One[time.Time](w.t, w.DB, "select date_trunc('day', clock_timestamp(), 'utc')")
	return now.Add(12*time.Hour + time.Duration(days)*oneDay)
}

// partitions lists the attached days.
func (w *world) partitions() (names []string) {
	w.t.Helper()
	rows, err := w.Pool.Query(w.t.Context(), "select inhrelid::regclass::text from pg_inherits where inhparent = "+
		"'inbox_message'::regclass order by 1")
	if err != nil {
		w.t.Fatal(err)
	}
	names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

func (w *world) table(days int) string {
	return "inbox_message_" + w.noon(days).UTC().Format("20060102")
}

// exists reports whether a table exists, attached or not.
func (w *world) exists(table string) bool {
	w.t.Helper()
	return pgtest.One[bool](w.t, w.DB, "select to_regclass($1) is not null", table)
}

// long returns a consumer that started 30 days ago and has a window of 10 days.
func (w *world) long() *inbox.Inbox {
	w.t.Helper()
	w.Exec(w.t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', current_date - "+
		"30, 10)")
	return w.halting(inbox.Config{Window: 10 * oneDay, DaysAhead: 1})
}

// shrink shortens the window of every consumer, as if days had passed.
func (w *world) shrink(days int) {
	w.t.Helper()
	w.Exec(w.t, "update inbox_consumer set window_days = $1", days)
}

func of(id uuid.UUID) []event.Event {
	e := some(1)
	e[0].ID = id
	return e
}

func TestP9_7_DaysAreMadeOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 4 { // processes that start at the same time
		in := w.halting(inbox.Config{Window: 9*oneDay - time.Hour + time.Duration(i), DaysAhead: 3, LockTimeout: -1})
		wg.Go(func() { // without a lock time-out: the last one waits for the others
			if err := in.Prepare(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var want []string
	for d := -9; d <= 3; d++ {
		want = append(want, w.table(d))
	}
	same(t, "days", w.partitions(), want)
	// Every id goes to its own day, to the millisecond.
	w.Exec(t, "update inbox_consumer set floor = floor - 30")
	in := w.halting(inbox.Config{Window: 9 * oneDay, DaysAhead: 3})
	midnight := w.noon(-2).Add(-12 * time.Hour)
	handle(t, in.Each(write), append(of(idAt(midnight)), append(of(idAt(midnight.Add(oneDay-time.Millisecond))),
		of(idAt(midnight.Add(oneDay)))...)...))
	for table, n := range map[string]int{w.table(-2): 2, w.table(-1): 1} {
		if got := pgtest.One[int](t, w.DB, "select count(*) from "+table); got != n {
			t.Errorf("%d rows in %s, want %d", got, table, n)
		}
	}
}

func TestP9_1_MissingDayIsMade(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), &retries{}
	h := w.halting(inbox.Config{Observer: r.observer()}).Each(write)
	handle(t, h, some(1))
	w.Exec(t, "drop table "+w.table(1))
	conn := w.Connect(t)
	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "insert into inbox_message (consumer_name, message_id) values ('other', $1)",
		event.NewID().String()); err != nil {
		t.Fatal(err)
	}
	// With an open insert: making a day must not wait for it.
	events := append(some(1), of(idAt(w.noon(1)))...)
	same(t, "outcomes", handle(t, h, events), repeat(inbox.Applied, 2))
	same(t, "again", handle(t, h, events), repeat(inbox.Duplicate, 2))
	if r.count("day missing") != 1 || !w.exists(w.table(1)) {
		t.Errorf("retries %v", r.list)
	}
}

func TestP9_1_DroppedDayNeverForgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	h := in.Each(write)
	old, kept := of(idAt(w.noon(-6))), of(idAt(w.noon(-2)))
	handle(t, h, append(old, kept...))
	w.shrink(4)
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want []string
	for d := -4; d <= 1; d++ {
		want = append(want, w.table(d))
	}
	for range 2 {
		same(t, "days", w.partitions(), want)
		if w.exists(w.table(-6)) {
			t.Error("a day was detached but not dropped")
		}
		out, err := h.Handle(t.Context(), append(kept, old...))
		if halted(t, err, old[0].ID); !strings.Contains(err.Error(), "older than what is remembered") {
			t.Error(err)
		}
		same(t, "outcomes", out, []inbox.Outcome{inbox.Duplicate, inbox.Undecided})
		// The window grows again; the dropped days stay dropped.
		in = w.halting(inbox.Config{Window: 10 * oneDay, DaysAhead: 1})
		h = in.Each(write)
		if err := in.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, "days", w.partitions(), want) // before maintenance could drop a wrongly made day
		if err := in.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "effects", w.effects(), ids(append(old, kept...)))
}

// awaitMissingDay waits until events are retried because they have no day. It is wrong that they are decided.
func awaitMissingDay(t *testing.T, told <-chan inbox.RetriedInfo, decided <-chan []inbox.Outcome) {
	t.Helper()
	select {
	case r := <-told:
		if r.Reason != "day missing" {
			t.Errorf("retried as %s: %v", r.Reason, r.Err)
		}
	case out := <-decided:
		t.Fatalf("without its day: %v", out)
	}
}

// TestP9_7_TodayDroppedByAnother: that holds for today, too, and an operator may make it empty.
func TestP9_7_TodayDroppedByAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	told := make(chan inbox.RetriedInfo, 10000)
	in := w.inbox(inbox.Config{Observer: inbox.Observer{Retried: func(i inbox.RetriedInfo) { told <- i }}})
	h := in.Each(write)
	handle(t, h, some(1))
	w.Exec(t, "drop table "+w.table(0))
	if err := in.Maintain(t.Context()); err == nil || w.exists(w.table(0)) {
		t.Errorf("days %v: %v", w.partitions(), err)
	}
	decided := make(chan []inbox.Outcome, 1)
	go func() { decided <- handle(t, h, some(1)) }()
	awaitMissingDay(t, told, decided)
	d, err := operator.Diagnose(t.Context(), w.Pool, w.Schema, false)
	if err != nil {
		t.Fatal(err)
	}
	_, remedy, _ := strings.Cut(d.Altered, "a second time: ")
	remedy, _, _ = strings.Cut(remedy, ";")
	w.Exec(t, remedy)
	same(t, "made empty", <-decided, []inbox.Outcome{inbox.Applied})
}

// TestP9_7_DayDroppedByAnother: something else has dropped a day of the window, and its ids are forgotten. An empty day
// would take them for new. So the day is not made again: its events wait, those of other days do not, and an operator
// gives the day up.
func TestP9_7_DayDroppedByAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	lost, kept := of(idAt(w.noon(-2))), of(idAt(w.noon(-1)))
	handle(t, in.Each(write), append(lost, kept...))
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "drop table "+w.table(-2))
	w.Exec(t, "drop table "+w.table(1)) // of which no event was decided
	told := make(chan inbox.RetriedInfo, 10000)
	in = w.inbox(inbox.Config{
		Window: 10 * oneDay, DaysAhead: 1,
		Observer: inbox.Observer{Retried: func(i inbox.RetriedInfo) { told <- i }},
	})
	h := in.Each(write)
	same(t, "another day", handle(t, h, append(kept, some(1)...)), []inbox.Outcome{inbox.Duplicate, inbox.Applied})
	err := in.Maintain(t.Context())
	if err == nil || !strings.Contains(err.Error(), "are gone with the ids") || w.exists(w.table(-2)) ||
		!w.exists(w.table(1)) {
		t.Errorf("days %v: %v", w.partitions(), err)
	}
	d, err := operator.Diagnose(t.Context(), w.Pool, w.Schema, false)
	if _, day, _ := strings.Cut(w.table(-2), "inbox_message_"); err != nil || !strings.Contains(d.Altered, day) {
		t.Errorf("%+v: %v", d, err)
	}
	decided := make(chan []inbox.Outcome, 1)
	go func() { decided <- handle(t, h, lost) }()
	for range 3 {
		awaitMissingDay(t, told, decided)
	}
	_, remedy, _ := strings.Cut(d.Altered, "are quarantined: ")
	w.Exec(t, remedy)
	same(t, "given up", <-decided, repeat(inbox.Quarantined, 1))
	if err := in.Maintain(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(w.effects()); n != 3 {
		t.Errorf("%d effects, want 3", n)
	}
}

// TestP9_7_DayDetachedByAnother: something else has detached days of the window, or attached a default partition that
// has rows of a day to be made. Maintenance says what to do about that, and makes the other days.
func TestP9_7_DayDetachedByAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	e := some(2)
	h := in.Each(write)
	handle(t, h, e[:1])
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	advice := func(what, cut string) string {
		t.Helper()
		err := in.Maintain(t.Context())
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Fatalf("%v, want %q", err, what)
		}
		_, remedy, _ := strings.Cut(err.Error(), cut)
		return remedy
	}
	w.Exec(t, "alter table inbox_message detach partition "+w.table(0))
	w.Exec(t, "drop table "+w.table(1))
	remedy := advice(w.table(0)+" is detached", "is detached: ")
	if !w.exists(w.table(1)) {
		t.Error("the other day was not made")
	}
	w.Exec(t, remedy)
	same(t, "attached again", handle(t, h, e), []inbox.Outcome{inbox.Duplicate, inbox.Applied})

	w.Exec(t, "drop table "+w.table(1))
	w.Exec(t, "create table others partition of inbox_message default")
	ahead := of(idAt(w.noon(1)))
	same(t, "ahead", handle(t, h, ahead), repeat(inbox.Applied, 1))
	remedy = advice("others is a default partition", "dropped: ")
	for _, sql := range strings.Split(remedy, "; ")[:4] {
		if strings.HasPrefix(sql, "run ") {
			if err := in.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		sql, _, _ = strings.Cut(sql, "\n")
		w.Exec(t, sql)
	}
	same(t, "moved", handle(t, h, ahead), repeat(inbox.Duplicate, 1))
	if err := in.Maintain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestP9_1_DroppedWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	h, old := in.Each(write), of(idAt(w.noon(-6)))
	handle(t, h, some(1)) // caches the state of the days
	w.shrink(4)
	if _, err := inbox.MaintainAll(t.Context(), w.Pool, inbox.MaintainConfig{DaysAhead: 1}); err != nil {
		t.Fatal(err)
	}
	_, err := h.Handle(t.Context(), append(some(1), old...))
	halted(t, err, old[0].ID)
	if w.exists(w.table(-6)) {
		t.Error("a dropped day was made again")
	}
}

func TestP9_7_LongestWindowRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long, short := w.long(), newInbox(t, w.Pool, "short", inbox.Config{
		Window: 3 * oneDay, AllowShortWindow: true,
		DaysAhead: 1, OnFailure: inbox.Halt,
	})
	old := of(idAt(w.noon(-8)))
	h := long.Each(write)
	handle(t, h, old)
	if err := short.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "update inbox_consumer set floor = floor - 30")
	same(t, "long", handle(t, h, old), repeat(inbox.Duplicate, 1))
	_, err := short.Each(write).Handle(t.Context(), old)
	if err == nil {
		t.Fatal("an id older than the consumer's own window is not refused")
	}
}

func TestP9_1_HistoryBeforeTheFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.halting(inbox.Config{Window: 10 * oneDay, DaysAhead: 1})
	h, history := in.Each(write), append(of(idAt(w.noon(-400))), of(idAt(w.noon(-1)))...)
	same(t, "first", handle(t, h, history), repeat(inbox.Applied, 2))
	same(t, "again", handle(t, h, history), repeat(inbox.Duplicate, 2))
	if days, others := w.rows(); days != 0 || others != 2 {
		t.Errorf("%d rows in days, %d in any", days, others)
	}
	// A window later the ids must not be new, even after inbox_message_any was cleaned.
	w.Exec(t, "update inbox_days set dropped_before = current_date + 1")
	w.Exec(t, "set local effectonce.inbox = 'forget'; delete from inbox_message_any")
	_, err := h.Handle(t.Context(), history)
	halted(t, err, history[0].ID)
	if len(w.effects()) != 2 {
		t.Error("history was applied twice")
	}
}

func TestP9_1_UndecidableIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.halting(inbox.Config{}).Each(write)
	for name, id := range map[string]uuid.UUID{"days ahead of everybody": idAt(w.noon(30)), "no id": uuid.Nil} {
		events := append(some(2), of(id)...)
		out, err := h.Handle(t.Context(), append(events, some(1)...))
		if e := halted(t, err, id); e.Attempts != 0 {
			t.Errorf("%s: %d attempts", name, e.Attempts)
		}
		same(t, name, out, append(repeat(inbox.Applied, 2), repeat(inbox.Undecided, 2)...))
	}
}

// blockedDetach starts maintenance that waits in DETACH for an open insert into an old day. release commits the insert.
func (w *world) blockedDetach(ctx context.Context, in *inbox.Inbox) (release func(), maintained chan error) {
	w.t.Helper()
	if err := in.Prepare(w.t.Context()); err != nil { // writes the inbox's own window
		w.t.Fatal(err)
	}
	conn := w.Connect(w.t)
	if _, err := conn.Exec(w.t.Context(), "begin"); err != nil {
		w.t.Fatal(err)
	}
	if _, err := conn.Exec(w.t.Context(), "insert into inbox_message (consumer_name, message_id) values ('other', $1)",
		idAt(w.noon(-6)).String()); err != nil {
		w.t.Fatal(err)
	}
	w.shrink(5)
	maintained = make(chan error, 1)
	go func() { maintained <- in.Maintain(ctx) }()
	pgtest.AwaitSQL(w.t, w.DB,
		`select exists (select from pg_stat_activity where wait_event_type = 'Lock'
				and query like '%detach%' || $1 || '%concurrently'
		and $2 = any (pg_blocking_pids(pid)))`, w.Schema, int32(conn.PgConn().PID()))
	return func() {
		if _, err := conn.Exec(w.t.Context(), "commit"); err != nil {
			w.t.Fatal(err)
		}
	}, maintained
}

func TestP9_7_DroppingBlocksNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	h := newInbox(t, w.Pool, "ledger", inbox.Config{Window: 10 * oneDay, DaysAhead: 1, LockTimeout: -1}).Each(write)
	handle(t, h, some(1))
	release, maintained := w.blockedDetach(t.Context(), in)
	for range 20 {
		same(t, "meanwhile", handle(t, h, append(some(3), of(idAt(w.noon(-2)))...)), repeat(inbox.Applied, 4))
	}
	release()
	if err := <-maintained; err != nil {
		t.Fatal(err)
	}
	if got := len(w.partitions()); got != 7 {
		t.Errorf("%d days, want 7", got)
	}
}

// TestP9_7_MarkComesBeforeDrop: dropped_before is committed before a day is dropped.
func TestP9_7_MarkComesBeforeDrop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release, maintained := w.blockedDetach(t.Context(), w.long())
	if n := pgtest.One[int](t, w.DB, "select (clock_timestamp() at time zone 'utc')::date - dropped_before from "+
		"inbox_days"); n != 5 {
		t.Errorf("a day is being dropped: dropped_before is %d days back, want 5", n)
	}
	release()
	if err := <-maintained; err != nil {
		t.Fatal(err)
	}
}

func TestP9_7_InterruptedDetachIsFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	ctx, cancel := context.WithCancel(t.Context())
	release, maintained := w.blockedDetach(ctx, in)
	cancel()
	if err := <-maintained; err == nil {
		t.Fatal("Maintain returned nil although its ctx ended")
	}
	pgtest.AwaitSQL(t, w.DB, "select not exists (select from pg_stat_activity where query like '%detach%' || $1 || "+
		"'%' and state = 'active')", w.Schema)
	release()
	pending := "select count(*) from pg_inherits where inhdetachpending and inhparent = 'inbox_message'::regclass"
	if n := pgtest.One[int](t, w.DB, pending); n != 1 {
		t.Fatalf("%d pending detaches, want 1: the test interrupted nothing", n)
	}
	handle(t, in.Each(write), some(1))
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, w.DB, pending); n != 0 || len(w.partitions()) != 7 || w.exists(w.table(-6)) {
		t.Errorf("%d pending, days %v", n, w.partitions())
	}
}

func TestDetachedAndNotDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "update inbox_days set dropped_before = current_date - 8")
	w.Exec(t, "alter table inbox_message detach partition "+w.table(-9))
	w.Exec(t, "create table inbox_message_00000000 (x int)") // its name sorts below dropped_before
	w.shrink(5)
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.exists(w.table(-9)) || len(w.partitions()) != 7 {
		t.Errorf("days %v", w.partitions())
	}
}

func TestMaintenanceTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.long()
	if err := first.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.shrink(4)
	h, stop := first.Each(write), make(chan struct{})
	var writers, keepers sync.WaitGroup
	var applied []uuid.UUID
	writers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				events := append(some(5), of(idAt(w.noon(-3)))...)
				applied = append(applied, ids(events)...)
				same(t, "meanwhile", handle(t, h, events), repeat(inbox.Applied, 6))
			}
		}
	})
	for range 4 {
		keepers.Go(func() {
			pgtest.Await(t, "a complete pass", func() (bool, error) {
				_, err := inbox.MaintainAll(t.Context(), w.Pool, inbox.MaintainConfig{DaysAhead: 1})
				return err == nil, nil
			})
		})
	}
	keepers.Wait()
	close(stop)
	writers.Wait()
	if got := len(w.partitions()); got != 6 {
		t.Errorf("days %v", w.partitions())
	}
	same(t, "effects", w.effects(), applied)
}

func TestP9_7_CleanAny(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	foreign, fresh, history := uuid.New(), uuid.New(), idAt(w.noon(-50))
	for id, age := range map[uuid.UUID]int{foreign: 11, history: 11, fresh: 9} {
		w.Exec(t, "insert into inbox_message_any (consumer_name, message_id, processed_at) values ('ledger', $1, "+
			"clock_timestamp() - make_interval(days => $2))", id.String(), age)
	}
	clean := func(want int64) {
		t.Helper()
		info, err := inbox.MaintainAll(t.Context(), w.Pool, inbox.MaintainConfig{DaysAhead: 1})
		if err != nil || info.Cleaned != want {
			t.Fatalf("cleaned %d, want %d (%v)", info.Cleaned, want, err)
		}
	}
	w.Exec(t, "update inbox_consumer set floor = current_date - 9") // dropped_before will be one day before it
	clean(1)
	w.Exec(t, "update inbox_consumer set floor = current_date - 11") // one day after it
	clean(0)
	w.Exec(t, "update inbox_consumer set floor = current_date - 12")
	clean(1)
	if _, others := w.rows(); others != 1 {
		t.Errorf("%d rows left, want the fresh one", others)
	}
}

// TestP9_7_DaysWithoutRow: a dump without data, or a truncate between tests, took the row of inbox_days.
func TestP9_7_DaysWithoutRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "delete from inbox_days")
	if err := w.inbox(inbox.Config{Dedup: inbox.ByOffset}).Prepare(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "insert into inbox_days") {
		t.Errorf("%v", err)
	}
}

// worker returns the connections of a role without rights, and its name.
func (w *world) worker() (app *pgxpool.Pool, role string) {
	t := w.t
	t.Helper()
	role = w.Schema + "_app"
	w.Exec(t, fmt.Sprintf(`create role %s login`, role))
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), w.AdminURL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(context.Background(), "drop owned by "+role+"; drop role "+role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	app, err = pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(app.Close)
	return app, role
}

// grants gives a role the rights of a worker.
func (w *world) grants(role string) {
	t := w.t
	t.Helper()
	for _, grant := range []string{
		"usage on schema " + w.Schema, "select, insert on effect", "select, insert, delete on inbox_message, " +
			"inbox_message_any",
		"select, insert, update on inbox_consumer, inbox_progress", "select, insert, update, delete on " +
			"inbox_parked_key, inbox_parked",
		"select on inbox_days",
	} {
		w.Exec(t, "grant "+grant+" to "+role)
	}
}

func TestP9_7_NotTheOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app, role := w.worker()
	for _, grant := range []string{"", "usage on schema " + w.Schema} {
		if grant != "" {
			w.Exec(t, "grant "+grant+" to "+role)
		}
		err := newInbox(t, app, "ledger", small(inbox.Config{Schema: w.Schema})).Prepare(t.Context())
		if err == nil || strings.Count(err.Error(), "relay migrate --roles --print") != 1 {
			t.Errorf("with grant %q: %v", grant, err)
		}
	}
	w.grants(role)
	alone := newInbox(t, app, "ledger", small(inbox.Config{}))
	h := alone.Each(write)
	for what, err := range map[string]error{
		"Prepare": alone.Prepare(t.Context()), "Maintain": alone.Maintain(t.Context()),
		"Handle": func() error { _, err := h.Handle(t.Context(), some(1)); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "MaintenanceDB") {
			t.Errorf("%s: %v", what, err)
		}
	}
	helped := newInbox(t, app, "ledger", small(inbox.Config{MaintenanceDB: w.Pool}))
	same(t, "with MaintenanceDB", handle(t, helped.Each(write), some(2)), repeat(inbox.Applied, 2))
	if err := helped.Maintain(t.Context()); err != nil {
		t.Error(err)
	}
	same(t, "with days made by others", handle(t, h, some(2)), repeat(inbox.Applied, 2))
	w.Exec(t, "drop table "+w.table(1))
	late := newInbox(t, app, "ledger", small(inbox.Config{}))
	same(t, "with a late cron job", handle(t, late.Each(write), some(2)), repeat(inbox.Applied, 2))
}

func TestRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	passes := 0
	in := w.halting(inbox.Config{
		MaintainEvery: time.Millisecond,
		Observer: inbox.Observer{Maintained: func(info inbox.MaintainedInfo) {
			if passes++; passes == 3 {
				cancel()
			}
			if info.Err != nil {
				t.Error(info.Err)
			}
		}},
	})
	if err := in.Run(ctx); err != nil || passes != 3 {
		t.Errorf("Run returned %v after %d passes", err, passes)
	}
	if len(w.partitions()) != 3 {
		t.Errorf("days %v", w.partitions())
	}
}

func TestNotMigrated(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, err := newInbox(t, db.Pool, "ledger", inbox.Config{}).Each(write).Handle(t.Context(), some(1))
	if err == nil || !strings.Contains(err.Error(), "relay migrate") {
		t.Error(err)
	}
}

// TestP9_7_ClockJumps: the database's clock is believed only up to the last day that was made. Beyond it no day is
// dropped, no id is too old, and new ids are applied, until an operator confirms the clock.
func TestP9_7_ClockJumps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.long()
	h, e := in.Each(write), append(of(idAt(w.noon(-9))), of(idAt(w.noon(-1)))...)
	handle(t, h, e)
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The days end eight days ago, as if the clock had jumped.
	w.Exec(t, "update inbox_days set believed_until = current_date - 8")
	w.shrink(4)
	before := w.partitions()
	if err := in.Maintain(t.Context()); err == nil || !strings.Contains(err.Error(), "--believe-clock") {
		t.Errorf("Maintain: %v", err)
	}
	same(t, "days", w.partitions(), before)
	if d := pgtest.One[int](t, w.DB,
		"select count(*) from inbox_days where dropped_before > current_date - 10"); d != 0 {
		t.Error("dropped_before was raised although the clock jumped")
	}
	short := newInbox(t, w.Pool, "ledger", inbox.Config{
		Window: 4 * oneDay, AllowShortWindow: true, DaysAhead: 1,
		OnFailure: inbox.Halt,
	}).Each(write)
	same(t, "known", handle(t, short, e), repeat(inbox.Duplicate, 2))
	same(t, "new", handle(t, short, append(of(idAt(w.noon(-9))), some(1)...)), repeat(inbox.Applied, 2))
	believing := inbox.MaintainConfig{DaysAhead: 1, BelieveClock: true}
	if _, err := inbox.MaintainAll(t.Context(), w.Pool, believing); err != nil {
		t.Fatal(err)
	}
	if got := len(w.partitions()); got != 6 {
		t.Errorf("%d days after the clock was confirmed, want 6: %v", got, w.partitions())
	}
}

// TestP9_7_DaysOfClockJump: the days that a clock jumped over are made when an id needs one.
func TestP9_7_DaysOfClockJump(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "update inbox_days set believed_until = current_date - 5")
	in := w.long()
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.exists(w.table(-4)) || !w.exists(w.table(-5)) || !w.exists(w.table(0)) {
		t.Errorf("days %v", w.partitions())
	}
	same(t, "an id of such a day", handle(t, in.Each(write), of(idAt(w.noon(-4)))), repeat(inbox.Applied, 1))
	if !w.exists(w.table(-4)) {
		t.Errorf("days %v", w.partitions())
	}
}
