package relay_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

const archiveDays = `select coalesce(string_agg(right(c.relname, 8), ' ' order by c.relname), '') from pg_inherits i
	join pg_class c on c.oid = i.inhrelid
	where i.inhparent = 'outbox_archive'::regclass and c.relname <> 'outbox_archive_default'`

// archivedAt inserts an archived event with the given time of publishing.
func archivedAt(t *testing.T, db *pgtest.DB, at time.Time, key, payload string) {
	t.Helper()
	db.Exec(t,
		`insert into outbox_archive (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
				content_type, payload, created_at)
		select $1, 'e.1', 3, 1, 1, gen_random_uuid(), 's', '', 'payments', $2, 'T', '', convert_to($3, 'UTF8'),
			timestamptz '2026-01-02 03:04:05+00'`, at, key, payload)
}

func day(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format("20060102") }

func TestArchiveDaysAreMadeAndDropped(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	pgtest.AwaitDay(t, db)
	now := time.Now().UTC()
	archivedAt(t, db, now.AddDate(0, 0, -40), "old", "in the default partition")
	archivedAt(t, db, now.AddDate(0, 0, -2), "young", "in the default partition")
	if done, err := opened(t, db.Pool, db.Schema).MaintainArchive(t.Context(), 30); err != nil || len(done.Made) != 8 ||
		done.Cleaned != 1 || len(done.Left) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := pgtest.One[string](t, db, archiveDays); !strings.HasPrefix(got, day(0)) ||
		!strings.HasSuffix(got, day(7)) {
		t.Errorf("archive partitions: %s", got)
	}
	archivedAt(t, db, now, "k", "today")
	if got := pgtest.One[string](t, db,
		`select string_agg(key, ',' order by key) from only outbox_archive_default`); got != "young" {
		t.Errorf("rows left in the default partition: %s", got)
	}
	// A past day gets a partition, as it would have got in advance.
	text := strings.NewReplacer("{day}", day(-31), "{from}", day(-31), "{to}", day(-30))
	db.Exec(t,
		text.Replace(
			`create table outbox_archive_{day} partition of outbox_archive for values from ('{from} 00:00:00+00') to ('{to} 00:00:00+00')`))
	archivedAt(t, db, now.AddDate(0, 0, -31), "past", "")
	if done, err := opened(t, db.Pool, "").MaintainArchive(t.Context(), 30); err != nil || len(done.Dropped) != 1 ||
		done.Dropped[0] != day(-31) || len(done.Made) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_archive`); n != 2 {
		t.Errorf("%d archived rows left, want 2", n)
	}
	if _, err := opened(t, db.Pool, "").MaintainArchive(t.Context(), 0); err == nil {
		t.Error("zero days of archive were accepted")
	}
}

// TestArchiveMaintenanceWaitsForNobody: maintenance skips a day that has rows in the default partition, and a partition
// that a transaction is reading, and does the rest.
func TestArchiveMaintenanceWaitsForNobody(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	pgtest.AwaitDay(t, db)
	archivedAt(t, db, time.Now().AddDate(0, 0, 1), "tomorrow", "")
	done, err := opened(t, db.Pool, "").MaintainArchive(t.Context(), 30)
	if err != nil || len(done.Made) != 7 || len(done.Left) != 1 || done.Left[0] != day(1) {
		t.Errorf("%+v, %v", done, err)
	}
	conn := db.Connect(t)
	db.Exec(t, `drop table outbox_archive_`+day(7))
	for _, sql := range []string{`begin`, `select count(*) from outbox_archive`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	done, err = opened(t, db.Pool, "").MaintainArchive(t.Context(), 30)
	if err != nil || len(done.Made) != 0 || len(done.Left) != 2 {
		t.Errorf("while a transaction reads a partition: %+v, %v", done, err)
	}
	archivedAt(t, db, time.Now(), "k", "archived during the maintenance")
}

func TestArchiveNeedsItsOwner(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	role := "nobody_" + db.Schema
	db.Exec(t, `create role `+role)
	t.Cleanup(func() {
		for _, sql := range []string{`drop owned by ` + role, `drop role ` + role} {
			if _, err := db.Pool.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	db.Exec(t, `grant usage on schema `+db.Schema+` to `+role)
	cfg := db.Pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := opened(t, pool, "").MaintainArchive(t.Context(), 30); err == nil ||
		!strings.Contains(err.Error(), "relay archive maintain") {
		t.Errorf("error %v", err)
	}
}

// TestReplay: the chosen events enter the outbox again in their old order, with their ids and their times.
func TestReplay(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	start := time.Now().Add(-time.Hour)
	for i, payload := range []string{"0", "1", "2", "3", "4", "5"} {
		archivedAt(t, db, start.Add(time.Duration(i)*time.Minute), "k", payload)
		archivedAt(t, db, start.Add(time.Duration(i)*time.Minute), "other", payload)
	}
	db.Exec(t, `update outbox_archive set type = 'Other' where payload = '5'`)
	// The archive's order counts, not the clock.
	db.Exec(t, `update outbox_archive set published_at = $1 where payload = '1'`, start.Add(4*time.Minute))
	o, key := newOperator(t, db), "k"
	choice := operator.Replay{From: start, Topic: "payments", Key: &key, Type: "T"}
	plan, err := o.PlanReplay(t.Context(), choice)
	if err != nil || plan.Events != 5 || plan.Keys != 1 || plan.Bytes != 5 || len(plan.Head) != 5 ||
		plan.Head[0].Key != "k" || !plan.First.Equal(start.Truncate(time.Microsecond)) {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_event) + (select count(*) from outbox_audit)`); n != 0 {
		t.Fatal("the plan appended events")
	}
	done, err := o.Replay(t.Context(), choice, "the ledger lost them")
	if err != nil || done.Events != 5 || done.Last != plan.Head[4].Pos {
		t.Fatalf("replayed %+v, %v", done, err)
	}
	if again, err := o.Replay(t.Context(), operator.Replay{
		From: start, Topic: "payments", Key: &key, Type: "T",
		After: done.Last,
	}, "go on"); err != nil || again.Events != 0 {
		t.Errorf("replay behind the last event: %+v, %v", again, err)
	}
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 5)
	for i, e := range to.events() {
		if e.ID != plan.Head[i].MessageID || !e.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
			t.Errorf("event %d replayed as %+v, want %+v", i, e, plan.Head[i])
		}
	}
	if got := pgtest.One[string](t, db,
		`select string_agg(action || ' ' || coalesce(detail->>'events', '-'), ', ' order by id) from outbox_audit`); got != "replay -, replay ended 5, replay -, replay ended 0" {
		t.Errorf("audit: %s", got)
	}
}

// TestReplayInBatchesAtARate: a replay also waits while the outbox is full.
func TestReplayInBatchesAtARate(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t,
		`insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type, content_type,
				created_at)
		select 'e.1', 3, g, g, gen_random_uuid(), '', '', 'payments', 'k', 'T', '', now()
		from generate_series(1, 1200) g`)
	o := newOperator(t, db)
	fill(t, db, 10_000, 10)
	ended := make(chan error, 1)
	var done operator.ReplayResult
	go func() {
		var err error
		done, err = o.Replay(t.Context(), operator.Replay{
			From: time.Now().Add(-time.Hour), Topic: "payments",
			Rate: 4000,
		}, "r")
		ended <- err
	}()
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_audit)`)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 10_000 {
		t.Errorf("the replay did not wait for a full outbox: %d events", n)
	}
	db.Exec(t, `truncate outbox_event`)
	if err := <-ended; err != nil || done.Events != 1200 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := pgtest.One[int](t, db, `select count(distinct message_id) from outbox_event`); n != 1200 {
		t.Errorf("%d events replayed", n)
	}
}

// TestReplayDoesNotMeetItself: replayed events are archived again, and no replay chooses them a second time: not one
// whose range ends in the future, and not one that continues after an interruption.
func TestReplayDoesNotMeetItself(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	const events = 600 // more than a replay at this rate appends before the relay's fourth call stops it
	db.Exec(t, `insert into outbox_archive (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key,
			type, content_type, payload, created_at)
		select now() - interval '1 hour', 'e.1', 3, g, g, gen_random_uuid(), 's', '', 'payments', 'k', 'T', '',
			convert_to(g::text, 'UTF8'), now() - interval '1 day' from generate_series(0, $1 - 1) g order by g`, events)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	to.verdict = func(call int, _ event.Event) error {
		if call == 4 { // the replay has the replies of the first three: the fourth's may come too late for it
			cancel()
		}
		return nil
	}
	// A batch is one event, and its events are archived before the next batch.
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.ArchiveDays = 3 })))
	choice := operator.Replay{
		From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(time.Minute), Topic: "payments",
		Rate: 4,
	}
	o := newOperator(t, db)
	first, err := o.Replay(ctx, choice, "r")
	if err == nil || first.Events < 3 || first.Events == events || first.To.After(time.Now().Add(30*time.Second)) {
		t.Fatalf("first %+v, %v", first, err)
	}
	awaitDrained(t, db)
	choice.After, choice.To, choice.Rate = first.Last, first.To, 0
	second, err := o.Replay(t.Context(), choice, "r")
	if err != nil || first.Events+second.Events != events || second.To != first.To {
		t.Errorf("first %+v, second %+v, %v", first, second, err)
	}
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// A batch is one event: the one whose COMMIT was interrupted may be replayed twice.
	if twice := checkOrder(t, to.events(), events); twice > 1 {
		t.Errorf("%d events were published twice", twice)
	}
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	o, now := newOperator(t, db), time.Now()
	for name, c := range map[string]operator.Replay{
		"no beginning": {Topic: "t"}, "no topic": {From: now}, "an empty range": {
			From: now, To: now.Add(-time.Hour),
			Topic: "t",
		},
		"a negative rate": {From: now, Topic: "t", Rate: -1},
	} {
		if _, err := o.Replay(t.Context(), c, "r"); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := o.Replay(t.Context(), operator.Replay{From: now, Topic: "t"}, ""); err == nil {
		t.Error("no reason was accepted")
	}
}
