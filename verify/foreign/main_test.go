package foreign

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

type order struct {
	ID, Customer string
	N            int
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs run until stop or the end of the test.
func start(t testing.TB, run func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func startRelay(t testing.TB, db *pgtest.DB, brokers []string) (stop func()) {
	t.Helper()
	to, err := publisher.NewKafka(brokers, publisher.Config{Timeout: stall, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(db.Pool, to, relay.Config{Schema: db.Schema, Lease: stall, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return start(t, func(ctx context.Context) error {
		defer func() { _ = to.Close() }()
		return r.Run(ctx)
	})
}

// stall is longer than a slow machine's Kafka takes to answer: a write that is given up is made again, and tests count
// the records.
const stall = 2 * time.Minute

// effects is the table of a consumer's effects.
const effects = "create table effect (n bigint generated always as identity, id uuid not null, customer text not " +
	"null, payload jsonb not null)"

func reserve(ctx context.Context, tx pgx.Tx, e event.Event) error {
	_, err := tx.Exec(ctx, "insert into effect (id, customer, payload) values ($1, $2, $3)", e.ID, e.Key, e.Payload)
	return err
}

const (
	partitions = 4
	customers  = 7
)

// awaitEffects waits for n effects, and then until the group has committed the offsets of all records.
func awaitEffects(t testing.TB, db *pgtest.DB, brokers []string, group, topic string, n int) (records int) {
	t.Helper()
	pgtest.AwaitSQL(t, db, "select count(*) >= $1 from effect", n)
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	pgtest.Await(t, "the end of the log", func() (bool, error) {
		records = len(kafkatest.ReadAllAt(t, brokers, topic))
		res, err := client.OffsetFetch(t.Context(), &kafka.OffsetFetchRequest{
			GroupID: group,
			Topics:  map[string][]int{topic: {0, 1, 2, 3}},
		})
		if err != nil {
			return false, err
		}
		decided := 0
		for _, p := range res.Topics[topic] {
			decided += int(max(p.CommittedOffset, 0))
		}
		return decided == records, nil
	})
	if got := pgtest.One[int](t, db, "select count(*) from effect"); got != n {
		t.Errorf("%d effects of %d events", got, n)
	}
	return records
}

// checkOrder checks that the effects of each customer are those of its orders 0, 1, 2, ...
func checkOrder(t testing.TB, db *pgtest.DB) {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), "select customer, (payload->>'N')::int from effect order by n")
	if err != nil {
		t.Fatal(err)
	}
	next := map[string]int{}
	var customer string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&customer, &n}, func() error {
		if n != next[customer] {
			return fmt.Errorf("customer %s: order %d, want %d", customer, n, next[customer])
		}
		next[customer]++
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// page is a page of docs/migrate.
type page string

func readPage(t testing.TB, name string) page {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs/migrate", name))
	if err != nil {
		t.Fatal(err)
	}
	return page(b)
}

// blocks returns the page's code blocks in a language.
func (p page) blocks(language string) (all []string) {
	for _, rest := range strings.Split(string(p), "\n```"+language+"\n")[1:] {
		code, _, _ := strings.Cut(rest, "\n```")
		all = append(all, code)
	}
	return all
}

// shows fails unless the page's Go blocks are the marked parts of a source file.
func (p page) shows(t testing.TB, file string, parts ...string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		_, code, _ := strings.Cut(string(source), "// "+part+":begin\n")
		code, _, _ = strings.Cut(code, "\n// "+part+":end")
		if code == "" || !strings.Contains(string(p), "```go\n"+code+"\n```") {
			t.Errorf("the page differs from the code between %s:begin and its end", part)
		}
	}
	if shown := len(p.blocks("go")); shown != len(parts) {
		t.Errorf("the page has %d Go blocks, %d are tested", shown, len(parts))
	}
}

// run runs the page's n-th SQL block.
func (p page) run(t testing.TB, db *pgtest.DB, n int) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), p.blocks("sql")[n], pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("SQL block %d of the page: %v", n, err)
	}
}
