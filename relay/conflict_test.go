package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

const (
	conflictKeys      = 50
	conflictProducers = 16
	perProducer       = 120
)

// TestP2_Conflict: 16 producers contend for 50 keys, and their transactions get ids in another order than locks. Long
// transactions write in this database and in another one, and one more keeps an event uncommitted. Two relays publish
// to Kafka. The first occurrences of every key are in version order, no event is lost, and none waits for the long
// transactions.
func TestP2_Conflict(t *testing.T) {
	t.Parallel()
	w := newConflict(t)
	w.produce(t, 1) // a backlog, so that claims see many transactions at once
	stopA := startRelay(t, w.relay(t))
	stopB := startRelay(t, w.relay(t))
	w.produce(t, 2)
	pgtest.AwaitSQL(t, w.db, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
	if err := w.violation(t, conflictProducers*perProducer*2); err != nil {
		t.Error(err)
	}
	if err := w.held.Commit(t.Context()); err != nil { // a low id that becomes visible last is published, too
		t.Fatal(err)
	}
	awaitDrained(t, w.db)
	if err := w.violation(t, conflictProducers*perProducer*2+1); err != nil {
		t.Error(err)
	}
	for _, stop := range []func() error{stopA, stopB} {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestP2_IDsBeforeTransactions: a transaction that was the first to write appends after another one, on the same key.
func TestP2_IDsBeforeTransactions(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	const version = `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', '`
	early := f.begin(f.db, `create table unrelated (x int)`)
	f.db.Exec(t, version+`0')`)
	f.exec(early, version+`1')`)
	f.exec(early, "commit")
	f.drain()
	checkOrder(t, f.to.events(), 2)
}

// TestP2_LateCommit: a lower id becomes visible after a higher one was published.
func TestP2_LateCommit(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	slow := f.begin(f.db, insertOne)
	f.db.Exec(t, insertOne)
	f.drain()
	if n := f.to.count(); n != 1 {
		t.Fatalf("%d events published beside an open transaction, want 1", n)
	}
	f.exec(slow, "commit")
	f.drain()
	if n := f.to.count(); n != 2 {
		t.Errorf("the event that committed late is not published: %d events, want 2", n)
	}
}

// conflictRun has aggregates with versions, and three long transactions.
type conflictRun struct {
	db    *pgtest.DB
	topic string
	held  pgx.Tx // keeps an event of its own key uncommitted
}

func newConflict(t *testing.T) *conflictRun {
	t.Helper()
	w := &conflictRun{db: pgtest.NewDatabase(t, migrations.Outbox), topic: kafkatest.Topic(t, 8)}
	w.db.Exec(t, `create table aggregate (key text primary key, version int not null default 0)`)
	w.db.Exec(t, `create table unrelated (x int)`)
	w.db.Exec(t, `insert into aggregate (key) select 'k' || g from generate_series(1, $1) g`, conflictKeys)
	other := pgtest.NewDatabase(t)
	other.Exec(t, `create table unrelated (x int)`)
	long := func(db *pgtest.DB) pgx.Tx {
		tx, err := db.Connect(t).Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `insert into unrelated values ($1)`, 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	long(w.db)
	long(other)
	w.held = long(w.db)
	if err := outbox.Append(t.Context(), w.held, w.event("held", 1)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *conflictRun) event(key string, version int) event.Event {
	return event.Event{Topic: w.topic, Key: key, Type: "Changed", Payload: []byte(strconv.Itoa(version))}
}

func (w *conflictRun) relay(t *testing.T) *relay.Relay {
	t.Helper()
	to := toKafka(t, w.db, kafkatest.Brokers(t), publisher.Config{})
	// Floors rise as often as possible, and every rescan checks that no row is below them.
	return newRelay(t, w.db, to, config(func(c *relay.Config) {
		c.FloorEvery, c.RescanEvery = 1, 1
		c.Observer.BelowFloor = func(lane int16) { t.Errorf("an event stood below the floor of lane %d", lane) }
	}))
}

// produce runs the producers until all are done.
func (w *conflictRun) produce(t *testing.T, seed uint64) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, conflictProducers)
	for p := range conflictProducers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(p)))
			for range perProducer {
				if err := pgx.BeginFunc(context.Background(), w.db.Pool,
					func(tx pgx.Tx) error { return w.change(tx, rnd) }); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// change gets its transaction id first, by writing elsewhere, and then waits for its aggregate behind transactions with
// later ids.
func (w *conflictRun) change(tx pgx.Tx, rnd *rand.Rand) error {
	ctx := context.Background()
	if rnd.IntN(3) > 0 {
		if _, err := tx.Exec(ctx, `insert into unrelated values ($1)`, 2); err != nil {
			return err
		}
	}
	key := "k" + strconv.Itoa(1+rnd.IntN(conflictKeys))
	var version int
	if err := tx.QueryRow(ctx, `update aggregate set version = version + 1 where key = $1 returning version`, key).Scan(
		&version); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, w.event(key, version))
}

// violation reads the topic and returns the first violation: a version out of order, a lost event, a number used twice.
func (w *conflictRun) violation(t *testing.T, want int) error {
	t.Helper()
	next, seen := map[string]int{}, map[string]bool{}
	for _, r := range kafkatest.ReadAll(t, w.topic) {
		id := r.Get("ce_id")
		if seen[id] {
			continue
		}
		seen[id] = true
		key, version := string(r.Key), string(r.Value)
		if next[key]++; version != strconv.Itoa(next[key]) {
			return fmt.Errorf("key %s: version %s first occurs where %d was due (partition %d offset %d)", key, version,
				next[key], r.Partition, r.Offset)
		}
	}
	if len(seen) != want {
		return fmt.Errorf("%d events are in Kafka, want %d", len(seen), want)
	}
	return nil
}
