package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// The rules for reading a WAL, each with a test and a bug that another project had. docs/decisions/0023 numbers them.

// checkByNumber checks that a consumer in watermark mode applies each event once within a numbering, and that an event
// has one number in it. It returns the number of numberings.
func checkByNumber(t *testing.T, log []event.Event) int {
	t.Helper()
	type mark struct {
		epoch string
		lane  int16
		key   string
	}
	highest, applied, epochs := map[mark]int64{}, map[string]int{}, map[string]bool{}
	for _, e := range log {
		m := mark{e.Position.Epoch, e.Position.Lane, e.Key} // this publisher's partitions are the keys
		epochs[m.epoch] = true
		if e.Position.Seq > highest[m] {
			highest[m] = e.Position.Seq
			applied[m.epoch+e.ID.String()]++
		}
	}
	for id, n := range applied {
		if n > 1 {
			t.Errorf("event %s is applied %d times by a consumer in watermark mode", id, n)
		}
	}
	return len(epochs)
}

// TestWAL1PositionIsCommitAndOrdinal: rows of one COPY share an LSN, and transactions commit in another order than they
// begin. Therefore the number consists of the commit's position and the event's ordinal in the transaction.
func TestWAL1PositionIsCommitAndOrdinal(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	early := db.Connect(t)
	tx, err := early.Begin(t.Context())
	if err == nil {
		_,
			err = tx.Exec(t.Context(),
			`insert into outbox_event (topic, key, type, payload) values ('t', 'late', 'T', '0')`)
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := [][]any{}
	for i := range 50 {
		rows = append(rows, []any{"t", "copied", "T", []byte(fmt.Sprint(i))})
	}
	for range 2 {
		if _, err := db.Pool.CopyFrom(t.Context(), pgx.Identifier{"outbox_event"},
			[]string{"topic", "key", "type", "payload"}, pgx.CopyFromRows(rows)); err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			rows[i][3] = []byte(fmt.Sprint(50 + i))
		}
	}
	pgtest.Await(t, "the copied events", func() (bool, error) { return to.count() == 100, nil })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitDrained(t, db)
	log := to.events()
	checkOrder(t, log, 101)
	if n := fromLog(t, log); n != 101 || log[100].Key != "late" {
		t.Errorf("%d events came from the WAL, the last of key %s", n, log[100].Key)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// awaitStatus waits until the relay has sent another status to the server, at least a second from now.
func awaitStatus(t *testing.T, db *pgtest.DB, slot string) {
	t.Helper()
	now := pgtest.One[time.Time](t, db, `select clock_timestamp()`)
	pgtest.AwaitSQL(t, db,
		`select coalesce((select r.reply_time > $2::timestamptz + interval '1 second' from pg_stat_replication r
		join pg_replication_slots s on s.active_pid = r.pid where s.slot_name = $1), false)`, slot, now)
}

// commitOf returns a position within the record of an event's commit: WAL before it may be confirmed, and no more. The
// number has the record's start in steps of 32 bytes, and the record is longer than one step.
func commitOf(t *testing.T, db *pgtest.DB, e event.Event) string {
	t.Helper()
	return pgtest.One[string](t, db, `select (base + ($1::bigint / 1048576 + 1) * 32)::text from outbox_wal`,
		e.Position.Seq)
}

// TestWAL2ConfirmsOnlyAtTransactionEnds: a transaction is published in parts, and its slot stays before it until the
// last event is acked. A session that is lost in between sends all events again, under the same numbers.
func TestWAL2ConfirmsOnlyAtTransactionEnds(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	const events = 100
	release := make(chan struct{})
	to := &memory{}
	to.verdict = func(_ int, e event.Event) error {
		if string(e.Payload) != "90" {
			return nil
		}
		select {
		case <-release:
			return nil
		default:
			return errors.New("not now")
		}
	}
	parts := func(c *relay.Config) { c.ClaimEvents, c.HoldAfter, c.DrainTimeout = 32, -1, -1 }
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, parts)))
	awaitStreaming(t, db)
	fill(t, db, events, 1)
	pgtest.Await(t, "the first parts", func() (bool, error) { return to.count() >= 90, nil })
	place := commitOf(t, db, to.events()[0])
	awaitStatus(t, db, slot)
	if err := stop(); !errors.Is(err, relay.ErrNotDrained) {
		t.Fatalf("stopped with %v", err)
	}
	if pgtest.One[bool](t, db,
		`select confirmed_flush_lsn >= $2::pg_lsn from pg_replication_slots where slot_name = $1`, slot, place) {
		t.Fatal("the slot is behind a transaction that is not acked")
	}
	stop = startRelay(t, newRelay(t, db, to, config(fromWAL, parts)))
	pgtest.Await(t, "the first parts again", func() (bool, error) { return to.count() >= 180, nil })
	close(release)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if again := checkOrder(t, log, events); again < 90 {
		t.Errorf("%d events were sent again, want the 90 that were acked", again)
	}
	checkNumbers(t, log)
	if n := checkByNumber(t, log); n != 1 {
		t.Errorf("%d numberings", n)
	}
}

// TestWAL3KeepalivesConfirmOnlyAcked: the server reports a later position while an event is not acked.
func TestWAL3KeepalivesConfirmOnlyAcked(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	fill(t, db, 1, 1)
	sent := <-to.entered
	before := commitOf(t, db, sent[0])
	db.Exec(t, `create table noise (text text)`)
	db.Exec(t, `insert into noise select repeat('x', 100) from generate_series(1, 1000)`)
	further := pgtest.One[string](t, db, `select pg_current_wal_lsn()::text`)
	db.Exec(t, `insert into noise select 'y'`)
	pgtest.AwaitSQL(t, db,
		`select coalesce((select r.write_lsn > $2::pg_lsn from pg_stat_replication r
				join pg_replication_slots s on s.active_pid = r.pid
		where s.slot_name = $1), false)`, slot, further)
	if pgtest.One[bool](t, db,
		`select flush_lsn > $2::pg_lsn from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid
			where s.slot_name = $1`, slot, before) {
		t.Error("a position was confirmed behind an event that is not acked")
	}
	if pgtest.One[bool](t, db, `select confirmed_flush_lsn > $2::pg_lsn from pg_replication_slots where slot_name = $1`,
		slot, before) {
		t.Error("the slot is behind an event that is not acked")
	}
	close(to.gate)
	go func() {
		for range to.entered { //nolint:revive // ignore all calls
		}
	}()
	awaitDrained(t, db)
	pgtest.AwaitSQL(t, db, `select confirmed_flush_lsn > $2::pg_lsn from pg_replication_slots where slot_name = $1`,
		slot, before)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
}

// TestWAL4HeartbeatMovesAnIdleSlot: the outbox is idle while other tables are written, and the slot keeps none of their
// WAL.
func TestWAL4HeartbeatMovesAnIdleSlot(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	to := &memory{}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	db.Exec(t, `create table noise (text text)`)
	for range 2 {
		db.Exec(t, `insert into noise select repeat('x', 500) from generate_series(1, 10000)`)
		place := pgtest.One[string](t, db, `select pg_current_wal_lsn()::text`)
		db.Exec(t, `checkpoint`) // records the running transactions: a slot may begin there
		pgtest.AwaitSQL(t, db,
			`select confirmed_flush_lsn >= $2::pg_lsn and restart_lsn >= $2::pg_lsn from pg_replication_slots
				where slot_name = $1`, slot, place)
	}
	if n := to.count(); n != 0 {
		t.Errorf("%d events were published", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// writer appends events of its own keys in different ways until it is stopped.
type writer struct {
	wg   sync.WaitGroup
	stop chan struct{}
	mu   sync.Mutex
	next map[string]int
}

func write(t *testing.T, db *pgtest.DB, writers int) *writer {
	t.Helper()
	w := &writer{stop: make(chan struct{}), next: map[string]int{}}
	for n := range writers {
		w.wg.Go(func() {
			own := map[string]int{}
			for i := 0; ; i++ {
				select {
				case <-w.stop:
					w.mu.Lock()
					for k, v := range own {
						w.next[k] = v
					}
					w.mu.Unlock()
					return
				default:
				}
				w.append(t, db, n, i, own)
			}
		})
	}
	t.Cleanup(func() { w.end() })
	return w
}

// append runs one transaction: a few events of a few keys, sometimes rolled back, sometimes after a savepoint.
func (w *writer) append(t *testing.T, db *pgtest.DB, n, i int, own map[string]int) {
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	made := map[string]int{}
	for j := range 1 + i%4 {
		key := fmt.Sprintf("w%d-%d", n, (i+j)%10)
		if _, ok := made[key]; !ok {
			made[key] = own[key]
		}
		if i%7 == 0 {
			if _, err = tx.Exec(t.Context(), `savepoint s`); err != nil {
				return
			}
		}
		if _,
			err = tx.Exec(t.Context(), `insert into outbox_event (topic, key, type, payload) values ('t', $1, 'T', $2)`,
			key, fmt.Append(nil, made[key])); err != nil {
			return
		}
		made[key]++
	}
	if i%11 == 0 {
		return
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("commit: %v", err)
		return
	}
	for k, v := range made {
		own[k] = v
	}
}

// end stops the writers and returns the number of committed events.
func (w *writer) end() (total int) {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	w.wg.Wait()
	for _, n := range w.next {
		total += n
	}
	return total
}

// TestWAL5SlotIsMissing: whatever happens to the slot while producers write, no event is lost, no key is inverted, and
// the relay goes back to the WAL. Consumers in watermark mode see a new numbering.
func TestWAL5SlotIsMissing(t *testing.T) {
	t.Parallel()
	end := `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1
		and active_pid is not null`
	for name, ruin := range map[string]string{
		"missing": `select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1`,
		"recreated": `select pg_drop_replication_slot(slot_name), pg_create_logical_replication_slot(slot_name,
				'pgoutput') from pg_replication_slots where slot_name = $1`,
		"advanced": `select pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) from pg_replication_slots
			where slot_name = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, slot := walDB(t)
			to := &memory{}
			stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
			awaitStreaming(t, db)
			w := write(t, db, 4)
			pgtest.Await(t, "events", func() (bool, error) { return to.count() > 300, nil })
			pgtest.Await(t, "the loss of the slot", func() (bool, error) {
				if _, err := db.Pool.Exec(t.Context(), end, slot); err != nil {
					return false, err
				}
				_, err := db.Pool.Exec(t.Context(), ruin, slot)
				return err == nil, nil
			})
			pgtest.AwaitSQL(t, db, `select incarnation > 1 from outbox_meta`)
			n := to.count()
			pgtest.Await(t, "more events", func() (bool, error) { return to.count() > n+300, nil })
			total := w.end()
			awaitStreaming(t, db)
			fill(t, db, 10, 10)
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			log := to.events()
			checkOrder(t, log, total+10)
			if n := checkByNumber(t, log); n != 2 {
				t.Errorf("%d numberings, want 2", n)
			}
			if log[len(log)-1].Position.Lane != -1 {
				t.Error("the relay did not go back to the WAL")
			}
		})
	}
}

// TestWAL5SlotIsLost: Postgres invalidates a slot that keeps too much WAL.
func TestWAL5SlotIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	db.Exec(t, `alter system set max_slot_wal_keep_size = '16MB'`)
	db.Exec(t, `select pg_reload_conf()`)
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	fill(t, db, 10, 10)
	<-to.entered
	db.Exec(t, `create table noise (text text)`)
	pgtest.Await(t, "the loss of the slot", func() (bool, error) {
		db.Exec(t, `insert into noise select repeat('x', 500) from generate_series(1, 20000)`)
		db.Exec(t, `select pg_switch_wal()`)
		db.Exec(t, `checkpoint`)
		return pgtest.One[bool](t, db, `select wal_status = 'lost' from pg_replication_slots where slot_name = $1`,
			slot), nil
	})
	if st, err := opened(t, db.Pool, "").WALStatus(t.Context()); err != nil || st.SafeBytes == nil ||
		*st.SafeBytes != 0 {
		t.Errorf("a lost slot is shown as unlimited: %+v, %v", st, err)
	}
	go func() {
		for range to.entered { //nolint:revive // ignore all calls
		}
	}()
	close(to.gate)
	pgtest.AwaitSQL(t, db, `select incarnation > 1 from outbox_meta`)
	awaitStreaming(t, db)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '1'
			from generate_series(0, 9) g`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	checkOrder(t, to.events(), 20)
}

// TestWAL8MemoryIsBounded: a huge transaction is read in parts no larger than a claim.
func TestWAL8MemoryIsBounded(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	var mu sync.Mutex
	calls := map[int]int{}
	to.verdict = func(call int, _ event.Event) error {
		mu.Lock()
		defer mu.Unlock()
		calls[call]++
		return nil
	}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) {
		c.ClaimEvents, c.ClaimBytes = 1000,
			1<<20
	})))
	awaitStreaming(t, db)
	const events = 30_000
	fill(t, db, events, 100)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), events)
	for _, n := range calls {
		if n > 1000 {
			t.Fatalf("%d events were sent at a time, want 1000 at most", n)
		}
	}
}

// TestWALStandby: one of two relays reads; the other takes over when the first stops or dies.
func TestWALStandby(t *testing.T) {
	t.Parallel()
	for _, orderly := range []bool{true, false} {
		t.Run(fmt.Sprintf("orderly %v", orderly), func(t *testing.T) {
			t.Parallel()
			db, _ := walDB(t)
			proxy := pgtest.NewProxy(t, db.URL)
			to := &memory{}
			first, err := relay.New(poolAt(t, proxy.URL()), to, config(fromWAL))
			if err != nil {
				t.Fatal(err)
			}
			stopFirst := startRelay(t, first)
			awaitStreaming(t, db)
			second := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Name = "second" }))
			stopSecond := startRelay(t, second)
			pgtest.AwaitSQL(t, db, `select count(*) = 2 from relay_member`)
			w := write(t, db, 3)
			pgtest.Await(t, "events", func() (bool, error) { return to.count() > 200, nil })
			if orderly {
				if err := stopFirst(); err != nil {
					t.Fatal(err)
				}
			} else {
				proxy.Refuse(true)
				proxy.CutAll()
			}
			awaitHeir(t, db, "second",
				`select coalesce((select m.name = 'second' from outbox_wal w join relay_member m on m.owner = w.owner),
						false) and (select count(distinct owner) = 1 from outbox_lane)`)
			n := to.count()
			pgtest.Await(t, "more events", func() (bool, error) { return to.count() > n+200, nil })
			total := w.end()
			awaitStreaming(t, db)
			awaitDrained(t, db)
			_ = stopFirst()
			if err := stopSecond(); err != nil {
				t.Fatal(err)
			}
			log := to.events()
			again := checkOrder(t, log, total)
			if orderly && again > 0 {
				t.Errorf("%d events were published again after a clean stop", again)
			}
			if n := checkByNumber(t, log); n != 1 {
				t.Errorf("%d numberings: the take-over was not from the WAL to the WAL", n)
			}
		})
	}
}

// TestWALConnectionsDie: under load, the relay's connections are killed again and again.
func TestWALConnectionsDie(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for outages")
	}
	t.Parallel()
	db, _ := walDB(t)
	proxy := pgtest.NewProxy(t, db.URL)
	to := &memory{}
	r, err := relay.New(poolAt(t, proxy.URL()), to, config(fromWAL))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, r)
	awaitStreaming(t, db)
	w := write(t, db, 4)
	for range 8 {
		n := to.count()
		pgtest.Await(t, "events", func() (bool, error) { return to.count() > n+200, nil })
		proxy.CutAll()
	}
	total := w.end()
	awaitStreaming(t, db)
	awaitDrained(t, db)
	_ = stop() // its own connection may be one of the killed ones
	log := to.events()
	again := checkOrder(t, log, total)
	t.Logf("%d events, %d again", total, again)
	checkByNumber(t, log)
}

// TestWALHandOverUnderLoad: lanes are handed over and given back repeatedly while producers write: each event is
// published once, in order.
func TestWALHandOverUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("runs under load")
	}
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	w := write(t, db, 6)
	for range 4 {
		stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
		awaitStreaming(t, db)
		n := to.count()
		pgtest.Await(t, "events", func() (bool, error) { return to.count() > n+100, nil })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	awaitStreaming(t, db)
	total := w.end()
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if again := checkOrder(t, log, total); again > 0 {
		t.Errorf("%d events were published twice", again)
	}
	if n := checkByNumber(t, log); n != 1 {
		t.Errorf("%d numberings", n)
	}
	t.Logf("%d events, %d of them from the WAL", total, fromLog(t, log))
}

// TestWALLongTransaction: a producer's transaction is open while lanes are handed over, and while they are given back.
func TestWALLongTransaction(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	open := func(payload string) pgx.Tx {
		tx, err := db.Connect(t).Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `insert into outbox_event (topic, key, type, payload)
				select 't', 'l' || g, 'T', $1 from generate_series(0, 99) g`, []byte(payload))
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	before := open("0") // no slot can be made meanwhile: all other events are published from the table
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL)))
	fill(t, db, 500, 50)
	awaitDrained(t, db)
	if n := to.count(); n != 500 {
		t.Errorf("%d events were published while no slot could be made", n)
	}
	if err := before.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStreaming(t, db)
	tx := open("1")
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 't', 'k' || g, 'T', '10'
			from generate_series(0, 49) g`)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	stop = startRelay(t, newRelay(t, db, to, config(fromWAL)))
	pgtest.AwaitSQL(t, db,
		`select coalesce((select s.active from pg_replication_slots s, outbox_wal w where s.slot_name = w.slot), false)`)
	if n := pgtest.One[int](t, db, `select count(*) from outbox_streamed`); n != 0 {
		t.Errorf("%d lanes were handed over while a producer's transaction may be missing in both table and WAL", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStreaming(t, db)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	if again := checkOrder(t, log, 750); again > 0 {
		t.Errorf("%d events were published twice", again)
	}
}

// TestWALServerCrashes: the server crashes during the publishing, and undoes deletes that were not on disk. Later it is
// shut down cleanly, which waits for the readers of its WAL.
func TestWALServerCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	const events, keys = 3000, 30
	var crash atomic.Bool
	reached := make(chan struct{})
	to := &memory{}
	to.verdict = func(_ int, e event.Event) error {
		if string(e.Payload) == "50" && crash.CompareAndSwap(true, false) {
			close(reached)
		}
		return nil
	}
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.ClaimEvents = 100 })))
	awaitStreaming(t, db)
	server.PauseWALWriter(t)
	crash.Store(true)
	fill(t, db, events, keys)
	<-reached
	server.StopImmediate()
	server.Start(t)
	db.Pool.Reset()
	awaitDrained(t, db)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '100'
			from generate_series(0, $1 - 1) g`, keys)
	awaitDrained(t, db)
	server.Restart(t)
	db.Pool.Reset()
	awaitStreaming(t, db)
	db.Exec(t,
		`insert into outbox_event (topic, key, type, payload) select 'payments', 'k' || g, 'T', '101'
			from generate_series(0, $1 - 1) g`, keys)
	awaitDrained(t, db)
	_ = stop() // its own connection may be one from before the restart
	log := to.events()
	again := checkOrder(t, log, events+2*keys)
	t.Logf("%d of %d events were sent again", again, events)
	if n := checkByNumber(t, log); n != 1 {
		t.Errorf("%d numberings", n)
	}
}

// TestWAL6Failover: the slot is lost with its server. On the new one all committed events are published, from the table
// and then from the WAL, under a new numbering; the synchronous standby has every published event.
func TestWAL6Failover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two servers")
	}
	t.Parallel()
	primary := pgtest.NewServer(t)
	old := primary.Database(t, migrations.Outbox)
	standby := primary.Standby(t, "standby")
	pgtest.AwaitSQL(t, old, `select count(*) = 1 from pg_stat_replication where state = 'streaming'`)
	old.RequireStandby(t, "standby")
	if _, err := operator.SetUpWAL(t.Context(), old.Pool, ""); err != nil {
		t.Fatal(err)
	}
	db, proxy, to := old.At(t, standby), pgtest.NewProxy(t, old.URL), &memory{}
	r, err := relay.New(poolAt(t, proxy.URL()), to, config(fromWAL))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, r)
	awaitStreaming(t, old)
	fill(t, old, 1000, 20)
	pgtest.Await(t, "half of the events", func() (bool, error) { return to.count() > 500, nil })
	primary.Kill()
	standby.Promote(t)
	proxy.To(t, standby.URL())
	proxy.CutAll()
	awaitDrained(t, db)
	// The new server has the rows that say which lanes the old one's WAL served.
	value := 50
	pgtest.Await(t, "an event of the new server's WAL", func() (bool, error) {
		db.Exec(t, `insert into outbox_event (topic, key, type, payload)
			select 'payments', 'k' || g, 'T', convert_to($1, 'UTF8') from generate_series(0, 19) g`, fmt.Sprint(value))
		value++
		awaitDrained(t, db)
		log := to.events()
		return log[len(log)-1].Position.Lane == -1, nil
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	log := to.events()
	checkOrder(t, log, 1000+20*(value-50))
	if n := checkByNumber(t, log); n < 2 {
		t.Error("the numbering is the one of the old server")
	}
}
