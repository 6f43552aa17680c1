package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/watermill"
)

type order struct {
	ID, Customer string
	N            int
}

// The program before the migration.

// before:begin
func placeOrder(ctx context.Context, db *pgxpool.Pool, topic string, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		var pub message.Publisher
		var err error
		pub, err = wsql.NewPublisher(wsql.TxFromPgx(tx),
			wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, nil)
		if err != nil {
			return err
		}
		pub = forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: "outbox"})
		return pub.Publish(topic, placed(o))
	})
}

// before:end

// The program after the migration, as docs/migrate/watermill-forwarder.md shows it.

// after:begin
func placeOrderNow(ctx context.Context, db *pgxpool.Pool, topic string, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		var pub message.Publisher
		var err error
		pub, err = watermill.NewOutbox(tx, watermill.OutboxConfig{Key: customer})
		if err != nil {
			return err
		}
		return pub.Publish(topic, placed(o))
	})
}

// after:end

// both:begin
func placed(o order) *message.Message {
	payload, _ := json.Marshal(o)
	m := message.NewMessage(o.ID, payload)
	m.Metadata.Set("name", "OrderPlaced")
	m.Metadata.Set("customer", o.Customer)
	return m
}

// customer is what orders messages: watermill-kafka's marshaler has it already, as
// kafka.NewWithPartitioningMarshaler(customer).
func customer(_ string, m *message.Message) (string, error) {
	return m.Metadata.Get("customer"), nil
}

// both:end

// TestMigrateFromTheForwarder follows docs/migrate/watermill-forwarder.md: the forwarder's remaining messages are sent
// before those of the outbox, each once, in order per key, and an unchanged consumer reads both.
func TestMigrateFromTheForwarder(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	t.Run("our publisher", func(t *testing.T) {
		t.Parallel()
		migrate(t, newPublisher(t), false)
	})
	t.Run("the old publisher", func(t *testing.T) {
		t.Parallel()
		to, err := watermill.NewPublisher(oldPublisher(t, watermill.PartitionKey), watermill.PublisherConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = to.Close() }()
		migrate(t, to, true)
	})
}

const (
	customers = 5
	each      = 20
)

// migrate follows the page. keepsPartitions says that a key's order holds across the change.
func migrate(t *testing.T, to relay.Publisher, keepsPartitions bool) {
	db, topic := pgtest.New(t, migrations.Outbox), kafkatest.Topic(t, 4)
	db.Exec(t, "create table orders (id text primary key, customer text not null)")
	place := func(do func(context.Context, *pgxpool.Pool, string, order) error, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			for c := range customers {
				if err := do(t.Context(), db.Pool, topic, order{
					event.NewID().String(), fmt.Sprint("c", c),
					i,
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	forward, stop := oldForwarder(t, db)
	place(placeOrder, 0, each/4)
	pgtest.AwaitSQL(t, db, waiting(t)+" = 0")
	stop()
	place(placeOrder, each/4, each/2) // no forwarder is running

	// Step 2: the new producers, without a relay.
	place(placeOrderNow, each/2, each)
	// Step 3: the forwarder sends its remaining messages.
	stop = forward()
	pgtest.AwaitSQL(t, db, waiting(t)+" = 0")
	stop()
	if n := pgtest.One[int](t, db, "select count(*) from outbox_event"); n != customers*each/2 {
		t.Fatalf("%d events wait in the outbox", n)
	}
	// Step 4: the relay.
	drain(t, db, to)

	var mu sync.Mutex
	next, seen := map[string]int{}, 0
	startRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("old consumer", topic, subscriber(t, topic), func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			var o order
			if err := json.Unmarshal(m.Payload, &o); err != nil {
				return err
			}
			if m.UUID != o.ID || m.Metadata.Get("name") != "OrderPlaced" || m.Metadata.Get("customer") != o.Customer {
				t.Errorf("message %+v of order %+v", m, o)
			}
			// Another publisher chooses other partitions. Then the order holds before the change, and after it.
			stream := o.Customer
			first := 0
			if !keepsPartitions && o.N >= each/2 {
				stream, first = "new "+stream, each/2
			}
			if o.N != first+next[stream] {
				t.Errorf("customer %s: order %d is out of order", o.Customer, o.N)
			}
			next[stream]++
			seen++
			return nil
		})
	})
	await(t, "every order", func() bool { mu.Lock(); defer mu.Unlock(); return seen >= customers*each })
	if got := len(kafkatest.ReadAll(t, topic)); got != customers*each {
		t.Errorf("%d records, want %d", got, customers*each)
	}
}

// waiting returns the page's query for the number of messages that the forwarder has not sent.
func waiting(t testing.TB) string {
	_, sql, _ := strings.Cut(page(t), "```sql\n")
	sql, _, ok := strings.Cut(sql, ";\n```")
	if !ok {
		t.Fatal("the page has no SQL")
	}
	return sql
}

func page(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/migrate/watermill-forwarder.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocsShowThisCode checks that docs/migrate/watermill-forwarder.md shows the marked code.
func TestDocsShowThisCode(t *testing.T) {
	source, err := os.ReadFile("forwarder_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"after", "both"} {
		_, code, _ := strings.Cut(string(source), "// "+part+":begin\n")
		code, _, _ = strings.Cut(code, "\n// "+part+":end")
		if code == "" || !strings.Contains(page(t), "```go\n"+code+"\n```") {
			t.Errorf("the page differs from the code between the marks of %q", part)
		}
	}
}

// TestProducersChangeOneLine: the migration adds one line to the program, and removes that line's old version and the
// forwarder's lines.
func TestProducersChangeOneLine(t *testing.T) {
	source, err := os.ReadFile("forwarder_test.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := func(part, name string) map[string]int {
		_, code, _ := strings.Cut(string(source), "// "+part+":begin\n")
		code, _, _ = strings.Cut(code, "\n// "+part+":end")
		count := map[string]int{}
		for line := range strings.Lines(strings.Replace(code, "func "+name+"(", "func f(", 1)) {
			count[strings.TrimSpace(line)]++
		}
		return count
	}
	before, after := lines("before", "placeOrder"), lines("after", "placeOrderNow")
	var removed, added []string
	for line, n := range before {
		if after[line] < n {
			removed = append(removed, line)
		}
	}
	for line, n := range after {
		if before[line] < n {
			added = append(added, line)
		}
	}
	slices.Sort(removed)
	if len(added) != 1 || !strings.Contains(added[0], "watermill.NewOutbox(tx") || len(removed) != 3 ||
		!strings.Contains(removed[0], "forwarder.NewPublisher(") ||
		!strings.Contains(removed[1], "wsql.NewPublisher(") || !strings.HasPrefix(removed[2], "wsql.PublisherConfig{") {
		t.Errorf("added %q, removed %q", added, removed)
	}
}

// oldForwarder starts the forwarder to watermill-kafka that sends the program's old outbox.
func oldForwarder(t *testing.T, db *pgtest.DB) (start func() (stop func()), stop func()) {
	t.Helper()
	start = func() func() {
		pool, err := pgxpool.New(t.Context(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(pool), wsql.SubscriberConfig{
			SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
			InitializeSchema: true, PollInterval: 10 * time.Millisecond,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		pub := oldPublisher(t, customer)
		f, err := forwarder.NewForwarder(sub, pub, nil, forwarder.Config{ForwarderTopic: "outbox"})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- f.Run(context.Background()) }()
		<-f.Running()
		var once sync.Once
		stop := func() {
			once.Do(func() {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				_ = pub.Close()
				pool.Close()
			})
		}
		t.Cleanup(stop)
		return stop
	}
	return start, start()
}

func oldPublisher(t *testing.T, key wkafka.GeneratePartitionKey) message.Publisher {
	t.Helper()
	config := wkafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers: kafkatest.Brokers(t), OverwriteSaramaConfig: config, Marshaler: wkafka.NewWithPartitioningMarshaler(
			key),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}
