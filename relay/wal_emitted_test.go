package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/kafkatest"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

func emitted(c *relay.Config) { fromWAL(c); c.Emitted = true }

// open waits until producers may emit for every lane.
func open(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_streamed where emitted = 'open'`)
}

// produce has one transaction write the events from..to-1 of each of some keys, with Emit where emit says so and with Append elsewhere.
func produce(t *testing.T, db *pgtest.DB, keys, from, to int, emit func(n int) bool) {
	t.Helper()
	produceTo(t, db, "payments", keys, from, to, emit)
}

func produceTo(t *testing.T, db *pgtest.DB, topic string, keys, from, to int, emit func(n int) bool) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for n := from; n < to; n++ {
			events := make([]event.Event, keys)
			for k := range keys {
				events[k] = event.Event{Topic: topic, Key: fmt.Sprint("k", k), Type: "T", Payload: []byte(fmt.Sprint(n))}
			}
			do := outbox.Append
			if emit(n) {
				do = outbox.Emit
			}
			if err := do(t.Context(), tx, events...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func always(int) bool       { return true }
func everyThird(n int) bool { return n%3 > 0 }

// arrived waits until n different events were published.
func arrived(t *testing.T, to interface{ events() []event.Event }, n int) {
	t.Helper()
	pgtest.Await(t, fmt.Sprint(n, " events"), func() (bool, error) {
		seen := map[string]bool{}
		for _, e := range to.events() {
			seen[e.ID.String()] = true
		}
		return len(seen) == n, nil
	})
}

// TestEmitPublishes: what is emitted is published once, in order, also among what is appended, with everything that an event has, and
// nothing is inserted for it.
func TestEmitPublishes(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	for n := range 10 {
		produce(t, db, 20, 6*n, 6*n+6, everyThird)
	}
	arrived(t, to, 1200)
	full := event.Event{
		ID: event.NewID(), Source: "s", Tenant: "té", Topic: "others", Key: "ключ", Type: "T\x01", ContentType: "x/y", Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		Headers: map[string]string{"a": `b"\`, "c": ""}, Payload: []byte{0, 1, 255},
	}
	empty := event.Event{ID: event.NewID(), Topic: "others", Type: "empty", Payload: []byte{}}
	none := event.Event{ID: event.NewID(), Topic: "others", Key: "k", Type: "none"}
	all := []event.Event{full, empty, none, full, empty, none}
	for i := range all[3:] {
		all[3+i].ID = event.NewID()
	}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := outbox.Emit(t.Context(), tx, all[:3]...); err != nil {
			return err
		}
		for _, e := range all[3:] {
			if err := outbox.Emit(t.Context(), tx, e); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	arrived(t, to, 1206)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if dup := inOrder(t, log[:1200], 1200); dup != 0 {
		t.Errorf("%d events were published twice", dup)
	}
	if n := fromLog(t, log); n != 1206 {
		t.Errorf("%d events came from the WAL, want 1206", n)
	}
	if n := pgtest.One[int](t, db, `select last_value::int from outbox_event_id_seq`); n != 1206 {
		t.Errorf("%d ids were drawn", n)
	}
	if n := pgtest.One[int](t, db, `select pg_stat_get_tuples_inserted('outbox_event'::regclass)::int`); n > 400 {
		t.Errorf("%d rows were inserted, want those of 400 events at most", n)
	}
	for i, want := range all {
		got := log[1200+i]
		if want.Time.IsZero() {
			if time.Since(got.Time).Abs() > time.Hour {
				t.Errorf("time %v", got.Time)
			}
			got.Time = want.Time
		}
		got.Position = event.Position{}
		if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
			t.Errorf("published %#v, want %#v", got, want)
		}
	}
}

// TestEmitRollsBack: what is emitted in a transaction or savepoint that is rolled back is not published.
func TestEmitRollsBack(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	one := func(tx pgx.Tx, payload string) error {
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Key: "k0", Type: "T", Payload: []byte(payload)})
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := one(tx, "0"); err != nil {
			return err
		}
		inner, err := tx.Begin(t.Context())
		if err != nil {
			return err
		}
		if err := one(inner, "not this"); err != nil {
			return err
		}
		if err := inner.Rollback(t.Context()); err != nil {
			return err
		}
		return one(tx, "1")
	})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := one(tx, "nor this"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 1, 2, 5, always)
	arrived(t, to, 5)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if dup := inOrder(t, to.events(), 5); dup != 0 {
		t.Errorf("%d events were published twice", dup)
	}
}

// TestEmitWithoutARelay: where no relay takes emitted events they are rows: before one runs, under isolation levels with older
// snapshots, and once the slot is gone.
func TestEmitWithoutARelay(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	rows := func(want int) {
		t.Helper()
		if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != want {
			t.Fatalf("%d rows, want %d", n, want)
		}
	}
	produce(t, db, 4, 0, 1, always)
	rows(4)
	stop := running(t, newRelay(t, db, &memory{}, config(fromWAL)))
	streaming(t, db)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	stop = running(t, newRelay(t, db, &memory{}, config(emitted)))
	open(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 4, 1, 2, always)
	rows(0)
	err := pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Key: "k0", Type: "T"})
	})
	if err != nil {
		t.Fatal(err)
	}
	rows(1)
	db.Exec(t, `select pg_drop_replication_slot($1)`, slot)
	produce(t, db, 4, 3, 4, always)
	rows(5)
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Key: "k0", Type: "T", NotBefore: time.Now().Add(time.Hour)})
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_scheduled`); n != 1 {
		t.Errorf("%d events are scheduled", n)
	}
}

// TestEmitRefusedEventsPark: an emitted event that is refused closes its lane; what was emitted becomes rows with their place among
// the others, where it parks its key; once it is released, the lane comes back and takes emitted events again.
func TestEmitRefusedEventsPark(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(2)
	b.set(refusing("25"))
	stop := running(t, newRelay(t, db, b, config(emitted)))
	open(t, db)
	for n := range 10 {
		produce(t, db, 20, 4*n, 4*n+4, everyThird)
	}
	arrived(t, b, 20*40-15)
	pgtest.AwaitSQL(t, db, `select count(*) = 15 from outbox_parked`)
	pgtest.AwaitSQL(t, db, `select count(*) = 31 from outbox_streamed where emitted = 'open'`)
	for k := range 20 {
		want := 40
		if k == 3 {
			want = 25
		}
		counting(t, b, fmt.Sprint("k", k), want)
	}
	b.set(nil)
	if _, err := operator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", "mended"); err != nil {
		t.Fatal(err)
	}
	open(t, db)
	produce(t, db, 20, 40, 45, everyThird)
	arrived(t, b, 900)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for k := range 20 {
		counting(t, b, fmt.Sprint("k", k), 45)
	}
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n != 1 {
		t.Errorf("incarnation %d: a refusal is certain and needs no new numbering", n)
	}
}

// lines counts what a relay logs.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, r.Message)
	return nil
}

func (l *lines) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.text {
		n += strings.Count(s, part)
	}
	return n
}

// TestEmitLeavesInOrder: while a transaction that has emitted is open, the lane that it emitted for is not published from the table,
// although others have appended to it: nothing overtakes what was emitted.
func TestEmitLeavesInOrder(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(2)
	log := &lines{}
	stop := running(t, newRelay(t, db, b, config(emitted, func(c *relay.Config) { c.Logger = slog.New(log) })))
	open(t, db)
	late, err := db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := func(tx pgx.Tx, payload string) error {
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Key: "k0", Type: "T", Payload: []byte(payload)})
	}
	if err := one(late, "1"); err != nil {
		t.Fatal(err)
	}
	b.set(func(e *event.Event, _ int32) answer {
		if string(e.Payload) == "x" {
			return tooLarge
		}
		return answer{}
	})
	// Keys of the same lane and another key's refusal: the lane leaves.
	other := pgtest.One[string](t, db, `select 'o' || g from generate_series(1, 1000) g
		where hashtextextended(('o' || g) collate "C", 0) & 31 = hashtextextended('k0' collate "C", 0) & 31 limit 1`)
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if err := one(tx, "0"); err != nil {
			return err
		}
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Key: other, Type: "T", Payload: []byte("x")})
	}); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select count(*) = 31 from outbox_streamed where emitted = 'open'`)
	// The relay has had its chances to go on without the open transaction.
	pgtest.Await(t, "the relay waits, or has left the lane", func() (bool, error) {
		return log.count("wait for the end of transactions") > 1 || log.count("lanes are published from the table") > 0, nil
	})
	// Of the same transaction, and so behind what it emitted: a row.
	if err := one(late, "2"); err != nil {
		t.Fatal(err)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return one(tx, "3") }); err != nil {
		t.Fatal(err)
	}
	arrived(t, b, 4)
	pgtest.AwaitSQL(t, db, `select count(*) = 1 from outbox_parked`)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(b.firsts("k0"), ""); got != "0123" {
		t.Errorf("published in the order %s", got)
	}
}

// TestEmitHoldsAPartition: with a partition that does not answer, what was emitted is held as rows are, and sent in order later.
func TestEmitHoldsAPartition(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(4)
	stop := running(t, newRelay(t, db, b, config(emitted, quick)))
	open(t, db)
	produce(t, db, 40, 0, 10, always)
	arrived(t, b, 400)
	b.set(func(_ *event.Event, partition int32) answer {
		if partition == 1 {
			return answer{err: errAway}
		}
		return answer{}
	})
	for from := 1; from < 4; from++ {
		produce(t, db, 40, 10*from, 10*from+10, everyThird)
	}
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_held) and not exists (select from outbox_event)`)
	b.set(nil)
	empty(t, db)
	arrived(t, b, 1600)
	open(t, db)
	produce(t, db, 40, 40, 50, always)
	arrived(t, b, 2000)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	everyKey(t, b, 40, 50)
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n == 1 {
		t.Error("events that may have been written got other numbers in the same numbering")
	}
}

// TestEmitHuge: a transaction of more events than are held in memory, and than there are numbers for: what gets none becomes rows.
func TestEmitHuge(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	r := newRelay(t, db, to, config(emitted, func(c *relay.Config) { c.ClaimEvents = 500 }))
	relay.LowerNumbers(r, 3000)
	stop := running(t, r)
	open(t, db)
	produce(t, db, 50, 0, 100, always)
	arrived(t, to, 5000)
	open(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if dup := inOrder(t, to.events(), 5000); dup != 0 {
		t.Errorf("%d events were published twice", dup)
	}
	if n := fromLog(t, to.events()); n != 3000 {
		t.Errorf("%d events came from the WAL, want 3000", n)
	}
}

// TestEmitKilled: a relay that dies between publishing and confirming leaves the rest to the next, which sends what was not confirmed
// again under the same ids; producers emit all the while.
func TestEmitKilled(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	proxy := pgtest.NewProxy(t, db.URL)
	first, err := relay.New(poolAt(t, proxy.URL()), to, config(emitted, func(c *relay.Config) { c.WALHeartbeat = time.Hour }))
	if err != nil {
		t.Fatal(err)
	}
	stopFirst := running(t, first)
	open(t, db)
	produce(t, db, 20, 0, 10, always)
	arrived(t, to, 200)
	proxy.Refuse(true)
	proxy.CutAll()
	produce(t, db, 20, 10, 20, everyThird)
	stopSecond := running(t, newRelay(t, db, to, config(emitted, func(c *relay.Config) { c.Name = "second" })))
	arrived(t, to, 400)
	produce(t, db, 20, 20, 30, everyThird)
	arrived(t, to, 600)
	if err := stopSecond(); err != nil {
		t.Fatal(err)
	}
	_ = stopFirst()
	inOrder(t, to.events(), 600)
	if n := pgtest.One[int](t, db, `select incarnation from outbox_meta`); n != 1 {
		t.Errorf("incarnation %d: nobody had to begin a new numbering", n)
	}
}

// TestEmitHandOver: a relay that polls leaves alone what only the WAL has, the slot is not dropped, and a relay that reads without
// taking more publishes it first; then the table is the source.
func TestEmitHandOver(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 20, 0, 10, always)
	produce(t, db, 20, 10, 11, func(int) bool { return false })
	polling := newRelay(t, db, to, config())
	if n, err := polling.Once(t.Context()); n != 0 || err != nil {
		t.Fatalf("%d events overtake what was emitted: %v", n, err)
	}
	stopPolling := running(t, polling)
	if _, err := relay.DropWAL(t.Context(), db.Pool, ""); err == nil || !strings.Contains(err.Error(), relay.ErrEmitted.Error()) {
		t.Errorf("the slot was dropped: %v", err)
	}
	st, err := relay.ReadWALStatus(t.Context(), db.Pool, "")
	if err != nil || st.Emitting != 32 {
		t.Errorf("%+v: %v", st, err)
	}
	stopReading := running(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Name = "reading" })))
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_streamed where emitted <> 'none')`)
	produce(t, db, 20, 11, 12, always)
	arrived(t, to, 240)
	if err := stopReading(); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 20, 12, 13, always)
	arrived(t, to, 260)
	if err := stopPolling(); err != nil {
		t.Fatal(err)
	}
	if dup := inOrder(t, to.events(), 260); dup != 0 {
		t.Errorf("%d events were published twice", dup)
	}
	if _, err := relay.DropWAL(t.Context(), db.Pool, ""); err != nil {
		t.Error(err)
	}
}

// TestEmitSlotLost: what was emitted and not published is gone with the slot; everything after it is published, from the table and then
// from another slot.
func TestEmitSlotLost(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	produce(t, db, 4, 0, 1, always)
	arrived(t, to, 4)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 4, 1, 2, always) // lost
	db.Exec(t, `select pg_drop_replication_slot($1)`, slot)
	produce(t, db, 4, 2, 3, always)
	stop = running(t, newRelay(t, db, to, config(emitted)))
	arrived(t, to, 8)
	open(t, db)
	produce(t, db, 4, 3, 4, always)
	arrived(t, to, 12)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, e := range to.events() {
		if string(e.Payload) == "1" {
			t.Error("an event was published that no slot had")
		}
	}
}

// TestEmitGivenUp: emitted events that an operator gives up hold nothing any more.
func TestEmitGivenUp(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n, err := relay.GiveUpEmitted(t.Context(), db.Pool, ""); n != 32 || err != nil {
		t.Fatalf("%d lanes: %v", n, err)
	}
	if _, err := relay.DropWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 20, 0, 1, always)
	stop = running(t, newRelay(t, db, to, config()))
	arrived(t, to, 20)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestEmitStrangers: a message that looks like an emitted event is not published while no lane was ever opened to any.
func TestEmitStrangers(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(fromWAL)))
	streaming(t, db)
	db.Exec(t, `select pg_logical_emit_message(true, 'effectonce event ' || 'outbox_event'::regclass::oid, '\x0101'::bytea)`)
	fill(t, db, 10, 10)
	drained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := to.count(); n != 10 {
		t.Errorf("%d events", n)
	}
}

// TestEmitTooLate: what was given up, and is read all the same, is appended to the table: late is better than never.
func TestEmitTooLate(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 20, 1, 2, always)
	if _, err := relay.GiveUpEmitted(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	produce(t, db, 20, 0, 1, always)
	stop = running(t, newRelay(t, db, to, config()))
	arrived(t, to, 20)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	stop = running(t, newRelay(t, db, to, config(emitted)))
	arrived(t, to, 40)
	open(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	inOrder(t, to.events(), 40)
	for _, e := range to.events() {
		if e.Topic != "payments" || e.Type != "T" || e.Time.IsZero() {
			t.Fatalf("published %+v", e)
		}
	}
}

// TestEmitToKafka: through a real broker, emitted and appended events of the same keys, while the first relay's connections die and
// another takes over: each key's first occurrences are in order.
func TestEmitToKafka(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	brokers := kafkatest.Brokers(t)
	topic := kafkatest.Topic(t, 5, nil)
	db, _ := walDB(t)
	const keys, each, parts = 40, 12, 8
	proxy := pgtest.NewProxy(t, db.URL)
	first, err := relay.New(poolAt(t, proxy.URL()), toKafka(t, db, brokers, publisher.Config{}), config(emitted))
	if err != nil {
		t.Fatal(err)
	}
	stopFirst := running(t, first)
	open(t, db)
	stopSecond := running(t, newRelay(t, db, toKafka(t, db, brokers, publisher.Config{}), config(emitted, func(c *relay.Config) { c.Name = "second" })))
	pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
	for part := range parts {
		produceTo(t, db, topic, keys, part*each, (part+1)*each, everyThird)
		switch part {
		case 2:
			proxy.CutAll()
		case 4:
			proxy.Refuse(true)
			proxy.CutAll()
		}
	}
	// By the confirmation of what came last, nothing is on its way.
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event) and w.owner = m.owner and w.confirmed >= $1::pg_lsn from outbox_wal w, relay_member m where m.name = 'second'`,
		pgtest.One[string](t, db, `select pg_current_wal_insert_lsn()::text`))
	if err := stopSecond(); err != nil {
		t.Fatal(err)
	}
	_ = stopFirst()
	published(t, brokers, topic, keys, parts*each)
}

// TestEmitFromEveryDriver: in every mode of pgx and through database/sql what arrives is what was emitted.
func TestEmitFromEveryDriver(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := running(t, newRelay(t, db, to, config(emitted)))
	open(t, db)
	want := map[uuid.UUID]event.Event{}
	events := func() (list []event.Event) {
		for i, text := range []string{"plain", "", `quo"te`, `back\slash`, "NULL", `{"a",b}`, "é\u2028🎈", "new\nline", "$1 ? %s", `\x41`, "'"} {
			e := event.Event{
				ID: event.NewID(), Source: text, Tenant: text, Topic: "payments", Key: text, Type: "T" + text, ContentType: text,
				Time: time.Date(2026, 1, 2, 3, 4, i, 123456000, time.UTC), Headers: map[string]string{"h" + text: text}, Payload: []byte(text),
			}
			if i == 1 {
				e.Payload, e.Headers = nil, nil
			}
			want[e.ID] = e
			list = append(list, e)
		}
		return list
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		cfg := db.Pool.Config().ConnConfig.Copy()
		cfg.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			return errors.Join(outbox.Emit(t.Context(), tx, events()...), outbox.Emit(t.Context(), tx, events()[:1]...))
		}); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		_ = conn.Close(t.Context())
	}
	sqldb := stdlib.OpenDBFromPool(db.Pool)
	defer func() { _ = sqldb.Close() }()
	tx, err := sqldb.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join((outbox.Appender{}).EmitSQL(t.Context(), tx, events()...), (outbox.Appender{}).EmitSQL(t.Context(), tx, events()[0]), tx.Commit()); err != nil {
		t.Error(err)
	}
	pgtest.Await(t, "the events", func() (bool, error) { return to.count() >= 6*12, nil })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, got := range to.events() {
		if got.Position.Lane != -1 {
			t.Errorf("event %s was a row", got.ID)
		}
		got.Position = event.Position{}
		if !reflect.DeepEqual(got, want[got.ID]) {
			t.Errorf("published %#v, want %#v", got, want[got.ID])
		}
	}
}

// TestEmitReleasesInAnOpenLane: a lane that producers emit for goes back to the table for an event that was parked alone and is released,
// and is not kept from it by its own wish, which lasts until it is there.
func TestEmitReleasesInAnOpenLane(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	b := newBroker(2)
	b.set(func(e *event.Event, _ int32) answer {
		if string(e.Payload) == "bad" {
			return tooLarge
		}
		return answer{}
	})
	stop := running(t, newRelay(t, db, b, config(emitted)))
	open(t, db)
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Emit(t.Context(), tx, event.Event{Topic: "payments", Type: "T", Payload: []byte("bad")})
	}); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select count(*) = 1 from outbox_parked`)
	open(t, db)
	produce(t, db, 20, 0, 2, everyThird)
	b.set(nil)
	o := operator(t, db)
	list, err := o.Parked(t.Context(), relay.ParkedFilter{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d parked: %v", len(list), err)
	}
	if err := o.ReleaseEvent(t.Context(), list[0].ID, "mended"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_parked)`)
	open(t, db)
	produce(t, db, 20, 2, 4, everyThird)
	arrived(t, b, 81)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for k := range 20 {
		counting(t, b, fmt.Sprint("k", k), 4)
	}
}
