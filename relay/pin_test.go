package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// TestP4ClusterIsPinned: the first cluster is pinned. Another one is refused for all topics until an operator accepts
// it.
func TestP4ClusterIsPinned(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	box, err := relay.Open(db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	pinned := func(cluster, topic string) {
		t.Helper()
		if n, err := box.Pin(t.Context(), cluster, topic, 3); n != 3 || err != nil {
			t.Errorf("topic %s in cluster %q: %d, %v", topic, cluster, n, err)
		}
	}
	refused := func(cluster, topic string) {
		t.Helper()
		var r *outcome.Refusal
		if n, err := box.Pin(t.Context(), cluster, topic, 3); !errors.As(err, &r) || !r.Topic {
			t.Errorf("topic %s in cluster %q: %d, %v", topic, cluster, n, err)
		}
	}
	pinned("", "early") // a broker that does not report its cluster
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { pinned("one", fmt.Sprint("t", i%2)) })
	}
	all.Wait()
	refused("two", "t0")
	refused("two", "new")
	pinned("", "t0")
	if n, err := box.Pin(t.Context(), "one", "absent", 0); n != 0 || err != nil {
		t.Errorf("a topic that does not exist: %d, %v", n, err)
	}
	if _, err := box.Pin(t.Context(), "two", "absent", 0); err == nil {
		t.Error("a topic that does not exist in another cluster is not refused for its cluster")
	}
	if n := pgtest.One[int](t, db, `select count(*) from outbox_topic where topic in ('new', 'absent')`); n != 0 {
		t.Error("a topic of another cluster, or one that does not exist, is pinned")
	}
	if err := newOperator(t, db).AcceptCluster(t.Context(), "two", "it has moved"); err != nil {
		t.Fatal(err)
	}
	pinned("two", "t0")
	refused("one", "t0")
	if got := pgtest.One[string](t, db,
		`select concat_ws(' ', operator, action, detail->>'before', detail->>'cluster') from outbox_audit`); got != "kim accept cluster one two" {
		t.Errorf("audit: %s", got)
	}
	if err := newOperator(t, db).AcceptCluster(t.Context(), "", "r"); err == nil {
		t.Error("an empty cluster was accepted")
	}
}

// TestP4AnotherClusterIsRefused: a relay with the brokers of another cluster publishes none of its events.
func TestP4AnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, topic, brokers := outboxDB(t), kafkatest.Topic(t, 2), kafkatest.Brokers(t)
	db.Exec(t, `update outbox_meta set kafka_cluster = 'another'`)
	appendTo(t, db, topic, 200, 20, 0)
	stop := startRelay(t, newRelay(t, db, toKafka(t, db, brokers, publisher.Config{}), config()))
	pgtest.AwaitSQL(t, db, `select exists (select from relay_member
		where trouble like 'kafka: %and the outbox publishes to another:%')`)
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_held) + (select count(*) from outbox_event)`); n != 200 {
		t.Errorf("%d of 200 events wait", n)
	}
	if n := len(kafkatest.ReadAll(t, topic)); n != 0 {
		t.Fatalf("%d events are in the other cluster", n)
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	meta, err := (&kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}).Metadata(t.Context(),
		&kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	if err := newOperator(t, db).AcceptCluster(t.Context(), meta.ClusterID, "it has moved"); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	published(t, brokers, topic, 20, 10)
}

// abroad is a publisher with the brokers of another cluster.
type abroad struct {
	memory
	pin func(ctx context.Context, topic string, partitions int) error
}

func (a *abroad) Reach(ctx context.Context) error { return a.pin(ctx, "", 0) }

// TestP4ForeignRelayGivesItsLanesUp: a relay with the brokers of another cluster leaves its lanes, with what it holds,
// to relays with the right ones, says so, and takes none until that cluster is accepted.
func TestP4ForeignRelayGivesItsLanesUp(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for leases")
	}
	t.Parallel()
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		givesItsLanesUp(t, outboxDB(t), relay.FeedTable)
	})
	t.Run("wal", func(t *testing.T) {
		t.Parallel()
		db, _ := walDB(t)
		givesItsLanesUp(t, db, relay.FeedWAL)
	})
}

func givesItsLanesUp(t *testing.T, db *pgtest.DB, feed relay.Feed) {
	t.Helper()
	box, err := relay.Open(db.Pool, "")
	if err == nil {
		_, err = box.Pin(t.Context(), "one", "payments", 3)
	}
	if err != nil {
		t.Fatal(err)
	}
	named := func(name string) relay.Config {
		return config(func(c *relay.Config) { c.Name, c.Lease, c.Feed = name, 6*time.Second, feed })
	}
	var moved atomic.Bool
	to := &abroad{pin: func(ctx context.Context, topic string, partitions int) error {
		cluster := "one"
		if moved.Load() {
			cluster = "two"
		}
		_, err := box.Pin(ctx, cluster, topic, partitions)
		return err
	}}
	to.verdict = func(_ int, e event.Event) error { return to.pin(context.Background(), e.Topic, 3) }
	startRelay(t, newRelay(t, db, to, named("foreign")))
	const its = `select count(*) from outbox_lane l join relay_member m on m.owner = l.owner where m.name = 'foreign'`
	pgtest.AwaitSQL(t, db, `select ($1 = (`+its+`))`, relay.Lanes)
	if feed == relay.FeedWAL {
		awaitStreaming(t, db)
	}
	moved.Store(true)
	appendTo(t, db, "payments", 200, 20, 0)
	pgtest.AwaitSQL(t, db, `select (0 = (`+its+`)) and exists (select from relay_member where trouble like
		'kafka: relay: the brokers are those of Kafka cluster two, and the outbox publishes to one: %')`)
	well := newBroker(4)
	stop := startRelay(t, newRelay(t, db, well, named("well")))
	awaitEmpty(t, db)
	if n := pgtest.One[int](t, db, its); n != 0 || to.count() != 0 {
		t.Errorf("the foreign relay has %d lanes, and has published %d events", n, to.count())
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkEveryKey(t, well, 20, 10)
	if err := newOperator(t, db).AcceptCluster(t.Context(), "two", "it has moved"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select ($1 = (`+its+`))`, relay.Lanes)
}

// TestPinsOfAReadOnlyRole: a role whose transactions are read-only by default, and asynchronous, pins all the same.
func TestPinsOfAReadOnlyRole(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	cfg := db.Pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	box, err := relay.Open(pool, "")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := box.Pin(t.Context(), "one", "t", 3); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestPinsAreTheDatabases: an error of the pins' database, among the verdicts, is not called Kafka's.
func TestPinsAreTheDatabases(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	box, err := relay.Open(db.Pool, "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	systems := make(chan string, 10)
	var whole atomic.Bool
	to := &memory{verdict: func(int, event.Event) error {
		if whole.Load() {
			return nil
		}
		_, err := box.Pin(t.Context(), "one", "t", 3)
		return fmt.Errorf("publisher: the pinned partition count: %w", err)
	}}
	stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
		c.Observer.Outage = func(system string, err error) { systems <- fmt.Sprint(system, " ", err == nil) }
	})))
	fill(t, db, 10, 1)
	if got := <-systems; got != "postgres false" {
		t.Error(got)
	}
	whole.Store(true)
	if got := <-systems; got != "postgres true" {
		t.Error(got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
