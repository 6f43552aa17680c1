package browser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
)

// failuresOfWorkers are those of consumers and their effects.
var failuresOfWorkers = []failure{
	{
		name: "an event kills its worker", check: "progress ledger",
		says:  "an event ends the process of its worker",
		alert: "WorkerRestarts",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.outside = n.dyingWorker()
			for i := range 60 {
				n.append(n.topic, fmt.Sprint("account-", i), map[bool]string{true: deadly, false: "{}"}[i == 20])
			}
		},
		mend: func(n *night) {
			n.outside()
			n.forgets("ledger")
			n.goes("Consumers", "an event ends the process")
			n.verb("Skip", "ends its worker", "Give up the records before it", "The consumer goes on at offset")
			n.worker(inbox.Config{}, applies)
		},
	},
	{
		name: "most events are parked", check: "consumer ledger", says: "FEE_MISSING x",
		alert: "InboxParksMost",
		stage: func(n *night) {
			var mended atomic.Bool
			n.outside = func() { mended.Store(true) }
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, func(context.Context, pgx.Tx, event.Event) error {
				if mended.Load() {
					return nil
				}
				return outcome.Terminal("FEE_MISSING", errors.New("the event has no fee"))
			})
			n.manyKeys(20, 1)
			n.measured(`sum(effectonce_inbox_events_total{outcome="parked"}) >= 20`)
			n.manyKeys(20, 1)
		},
		mend: func(n *night) {
			n.outside()
			n.goes("Failures", "most of its last events")
			n.goes("Look and act", "FEE_MISSING")
			n.verb("Release", "", "Release 40 events", "released")
			n.until("select not exists (select from inbox_parked)")
		},
	},
	{
		name: "a consumer's name is misspelt", check: "consumer ledgre",
		says:  "it is new, and has read nothing",
		alert: "PartitionHalted",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, applies)
			n.manyKeys(4, 1)
			n.until("select exists (select from inbox_progress where from_offset > 0)")
			stop()
			n.outside = n.workerOf("ledgre", n.db.Pool, inbox.Config{}, applies)
		},
		mend: func(n *night) {
			n.outside()
			n.worker(inbox.Config{}, applies)
			n.forgets("ledgre")
			n.goes("Consumers", "it is new")
			n.verb("Retire", "ledgre", "It is gone", "retired")
		},
	},
	{
		name: "a worker's role may not write the business table", check: "consumer ledger",
		says:  "the database rejects it",
		alert: "PartitionHalted",
		stage: func(n *night) {
			n.db.Exec(n.t, "create table balance (amount int)")
			pool := n.through(n.role(""))
			in, err := inbox.New(n.db.Pool, "ledger", inbox.Config{Schema: n.db.Schema})
			if err == nil {
				err = in.Maintain(n.t.Context())
			}
			if err != nil {
				n.t.Fatal(err)
			}
			user := pgx.Identifier{pool.Config().ConnConfig.User}.Sanitize()
			n.relay(n.db.Pool, relay.Config{})
			n.workerOf("ledger", pool, inbox.Config{MaintainEvery: -1},
				func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
					_, err := tx.Exec(ctx, "insert into balance (amount) values (1)")
					return err
				})
			n.manyKeys(4, 1)
			n.until("select count(*) = 4 from balance")
			n.db.Exec(n.t, "revoke insert on balance from "+user)
			n.manyKeys(20, 1)
			n.outside = func() { n.db.Exec(n.t, "grant insert on balance to "+user) }
		},
		mend: func(n *night) {
			n.outside()
			n.until("select count(*) = 24 from balance")
		},
		do: "it was granted",
	},
	{
		name: "an effect's provider is down", check: "progress ledger", says: "connection refused",
		alert: "ConsumerStalled",
		stage: func(n *night) {
			var mended atomic.Bool
			n.outside = func() { mended.Store(true) }
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{MaxAttempts: 1000}, func(ctx context.Context, _ pgx.Tx, e event.Event) error {
				if string(e.Payload) == "{}" || mended.Load() {
					return nil
				}
				_, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:1")
				return err
			})
			for i := range 10 {
				n.append(n.topic, fmt.Sprint("account-", i), map[bool]string{true: "[]", false: "{}"}[i%3 == 2])
			}
		},
		mend: func(n *night) {
			n.outside()
			n.goes("Consumers", "connection refused")
			n.verb("Resume", "connection refused", "Try at once", "resumes within seconds")
		},
	},
	{
		name: "an effect hangs", check: "progress ledger", says: "a batch has been running for",
		alert: "ConsumerStalled",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, func(ctx context.Context, _ pgx.Tx, _ event.Event) error {
				<-ctx.Done()
				return ctx.Err()
			})
			n.append(n.topic, "k", "{}")
			n.outside = func() {
				stop()
				n.worker(inbox.Config{}, applies)
			}
		},
		mend: elsewhere, do: "the worker was started again, with an effect that has a timeout",
	},
	{
		name: "Kafka deleted records before they were read", check: "progress ledger", says: "deleted records unread",
		alert: "WorkerAbsent",
		after: "RecordsLost",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, applies)
			n.manyKeys(8, 1)
			n.until(isDecided, 8)
			stop()
			n.manyKeys(20, 1)
			n.until(isPublished)
			kafkatest.DeleteBefore(n.t, n.topic, 0, -1)
			kafkatest.DeleteBefore(n.t, n.topic, 1, -1)
			n.outside = func() {
				n.worker(inbox.Config{}, applies)
				n.manyKeys(20, 1)
			}
		},
		mend: func(n *night) {
			n.outside()
			n.patiently("lost", "!!"+failure{check: "consumer ledger", says: "retention removed records"}.finding())
			n.presses("Acknowledge", "records are lost", false)
			n.fill("details[open] input[name=reason]", "replayed")
			n.presses("It is known", "", true)
		},
		do: "a worker was started, which goes on at the next record",
	},
	{
		name: "a topic was deleted under its consumer", check: "progress ledger", says: "does not exist any more",
		alert: "ConsumerPartDown",
		stage: func(n *night) {
			stop := n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, applies)
			n.manyKeys(8, 1)
			n.until(isDecided, 8)
			stop()
			deleteTopic(n)
			n.outside = func() { kafkatest.CreateTopic(n.t, n.brokers, n.topic, 2) }
		},
		mend: elsewhere, do: "the topic was made again",
	},
	{
		name: "a key has very many events", check: "progress ledger", says: `have the key "account-7"`,
		alert: "ConsumerLag",
		stage: func(n *night) {
			var fast atomic.Bool
			n.outside = func() { fast.Store(true) }
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
				if fast.Load() {
					return nil
				}
				_, err := tx.Exec(ctx, "select pg_sleep(0.004)")
				return err
			})
			n.manyKeys(20, 1)
			n.append(n.topic, "account-7", strings.Fields(strings.Repeat("{} ", 60_000))...)
		},
		mend: late, do: "the consumer was waited for",
	},
	{
		name: "an effect is slow", check: "progress ledger", says: "records older than 40s are not decided",
		stage: func(n *night) {
			var fast atomic.Bool
			n.outside = func() { fast.Store(true) }
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
				if fast.Load() {
					return nil
				}
				_, err := tx.Exec(ctx, "select pg_sleep(0.05)")
				return err
			})
			n.manyKeys(100, 60)
		},
		mend: late, do: "the effect was made faster",
	},
	{
		name: "somebody moved the group's offsets while the workers were stopped", check: "progress ledger",
		says:  "no worker runs it",
		alert: "WorkerAbsent",
		stage: func(n *night) {
			n.db.Exec(n.t, "create table balance (id text)")
			count := func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				_, err := tx.Exec(ctx, "insert into balance values ($1)", e.ID.String())
				return err
			}
			n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, count)
			n.manyKeys(8, 1)
			n.until(isDecided, 8)
			stop()
			n.manyKeys(8, 1)
			n.until(isPublished)
			n.movesGroup(0, 0)
			n.movesGroup(1, 8)
			n.outside = func() {
				n.worker(inbox.Config{}, count)
				n.until("select count(*) = 16 from balance")
			}
		},
		mend: elsewhere, do: "a worker was started: it goes by its own progress",
	},
	{
		name: "the database of a consumer was restored from a backup", check: "progress ledger",
		says:  "no worker runs it",
		alert: "WorkerAbsent",
		after: "EffectsForgotten",
		stage: func(n *night) {
			stopRelay := n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, applies)
			n.manyKeys(8, 1)
			n.until(isDecided, 8)
			n.until(isPublished)
			stop()
			stopRelay()
			old := n.db.Copy(n.t)
			stopRelay = n.relay(n.db.Pool, relay.Config{})
			stop = n.worker(inbox.Config{}, applies)
			n.manyKeys(8, 1)
			n.until(isDecided, 16)
			stop()
			stopRelay()
			n.db, n.pool = old, old.Pool
			n.outside = func() {
				n.worker(inbox.Config{}, applies)
				n.until(isDecided, 16)
			}
		},
		mend: elsewhere, do: "a worker was started",
	},
	{
		name: "effects end in deadlocks", check: "progress ledger", says: "40P01",
		alert: "ConsumerStalled",
		stage: func(n *night) {
			var mended atomic.Bool
			n.outside = func() { mended.Store(true) }
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
				if mended.Load() {
					return nil
				}
				_, err := tx.Exec(ctx, "do $$ begin raise deadlock_detected; end $$")
				return err
			})
			n.manyKeys(8, 1)
		},
		mend: elsewhere, do: "the other transactions ended",
	},
	{
		name: "the effects of a new consumer all fail", check: "progress ledger", says: "the effect fails",
		alert: "ConsumerStalled",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.manyKeys(20, 2)
			n.until(isPublished)
			stop := n.worker(inbox.Config{MaxAttempts: 1000}, func(context.Context, pgx.Tx, event.Event) error {
				return errors.New("no API key is set")
			})
			n.outside = func() {
				stop()
				n.worker(inbox.Config{}, applies)
			}
		},
		mend: elsewhere, do: "the release was corrected",
	},
	{
		name: "an effect hangs, and the pages' role sees no other sessions", check: "progress ledger",
		says: "grant pg_read_all_stats to this role",
		stage: func(n *night) {
			n.pool = n.through(n.role(""))
			n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, func(ctx context.Context, _ pgx.Tx, _ event.Event) error {
				<-ctx.Done()
				return ctx.Err()
			})
			n.append(n.topic, "k", "{}")
			n.outside = func() {
				stop()
				n.worker(inbox.Config{}, applies)
			}
		},
		mend: elsewhere, do: "the worker was started again",
	},
}

// late looks at a consumer that is late, which is not wrong while it moves, and then lets it be fast.
func late(n *night) {
	at := map[int64]bool{}
	pgtest.Await(n.t, "three moves", func() (bool, error) {
		wrong := false
		n.js(`[...document.querySelectorAll("article.finding.fail h3")].some(h => h.textContent.includes("ledger"))`, &wrong)
		if wrong {
			n.t.Fatalf("a consumer that moves is said to be wrong:\n%s", n.text())
		}
		at[pgtest.One[int64](n.t, n.db, "select sum(from_offset)::bigint from inbox_progress")] = true
		return len(at) > 3, nil
	})
	n.outside()
}

// isDecided: so many records are.
const isDecided = "select coalesce(sum(from_offset), 0) = $1 from inbox_progress"

// forgets waits until no program of a consumer has reported for so long that operators may change where it stands.
func (n *night) forgets(consumer string) {
	n.t.Helper()
	for _, silent := range []string{"1 min", "2 min"} {
		n.until(`select max((p.value ->> 'seen')::timestamptz) < clock_timestamp() - $2::interval
			from inbox_consumer, jsonb_each(programs) p where consumer_name = $1`, consumer, silent)
	}
}

// deadly is the payload of an event that ends the process of its worker.
const deadly = `"deadly"`

// manyKeys appends events of each of many keys.
func (n *night) manyKeys(keys, each int) {
	n.t.Helper()
	payloads := strings.Fields(strings.Repeat("{} ", each))
	for i := range keys {
		n.append(n.topic, fmt.Sprint("account-", i), payloads...)
	}
}

// dyingWorker has a supervisor start a worker's process again and again, until it is stopped.
func (n *night) dyingWorker() (stop func()) {
	return n.runs(func(ctx context.Context) error {
		for ctx.Err() == nil {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWorkerThatDies$")
			cmd.Env = append(os.Environ(), envWorker+"="+strings.Join(
				append([]string{n.db.URL, n.db.Schema, n.topic, fmt.Sprint(n.elsewhere)}, n.brokers...), " "))
			p, err := child.Start(cmd, filepath.Join(n.t.TempDir(), "log"), syscall.SIGKILL)
			if err != nil {
				return err
			}
			select {
			case <-p.Done():
			case <-ctx.Done():
				p.Stop(syscall.SIGTERM, time.Minute)
			}
		}
		return nil
	})
}

const envWorker = "EFFECTONCE_NIGHTSHIFT_WORKER"

// TestWorkerThatDies is the process of a worker.
func TestWorkerThatDies(t *testing.T) {
	where := strings.Fields(os.Getenv(envWorker))
	if len(where) == 0 {
		t.Skip("it is a process of TestNightShift")
	}
	n := &night{
		tab: &tab{t: t}, db: &pgtest.DB{URL: where[0], Schema: where[1], Pool: pgtest.Pool(t, where[0])},
		topic: where[2], brokers: where[4:], scraped: &scraped{},
	}
	page, err := net.Listen("tcp", "127.0.0.1:"+where[3])
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = http.Serve(page, promhttp.HandlerFor(n.scraped, promhttp.HandlerOpts{})) }()
	stop := n.worker(inbox.Config{}, func(_ context.Context, _ pgx.Tx, e event.Event) error {
		if string(e.Payload) == deadly {
			os.Exit(137)
		}
		return nil
	})
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
	stop()
}

// movesGroup sets the offset of the consumer's stopped group in a partition.
func (n *night) movesGroup(partition int, to int64) {
	n.t.Helper()
	res, err := n.client().OffsetCommit(n.t.Context(), &kafka.OffsetCommitRequest{
		GroupID: "ledger-" + n.topic, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{n.topic: {{Partition: partition, Offset: to}}},
	})
	if err == nil {
		err = res.Topics[n.topic][0].Error
	}
	if err != nil {
		n.t.Fatal(err)
	}
}
