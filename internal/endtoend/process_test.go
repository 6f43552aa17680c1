package endtoend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/kafkatest"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// The test binary is its own relay and its own worker when these are set.
const (
	envRole  = "ENDTOEND_ROLE" // relay or worker
	envKill  = "ENDTOEND_KILL" // the step to die at; empty: none
	envAfter = "ENDTOEND_AFTER"
	envURL   = "ENDTOEND_URL"
	envKafka = "ENDTOEND_KAFKA"
	envTopic = "ENDTOEND_TOPIC"
)

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "relay":
		os.Exit(play(runRelay))
	case "worker":
		os.Exit(play(runWorker))
	case "poisoned":
		os.Exit(play(runPoisoned))
	}
	pgtest.Main(m, kafkatest.Stop)
}

func play(run func(ctx context.Context, db *pgxpool.Pool, brokers []string, topic string, at step) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err == nil {
		defer db.Close()
		after, _ := strconv.Atoi(os.Getenv(envAfter))
		at := step{name: os.Getenv(envKill), left: new(atomic.Int64)}
		at.left.Store(int64(after))
		err = run(ctx, db, []string{os.Getenv(envKafka)}, os.Getenv(envTopic), at)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// step is where a child kills itself.
type step struct {
	name string
	left *atomic.Int64 // how often the step is passed before
}

// reach kills this process, as kill -9 does, when it is the step's time.
func (s step) reach(name string) {
	if s.name == name && s.left.Add(-1) < 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // nothing more happens in this goroutine
	}
}

// relaySteps: the claim is committed; one partition of several has acked; all have, before the settle; after it.
var relaySteps = []string{"claimed", "produced", "published", "settled"}

type killingPublisher struct {
	relay.Publisher
	at step
}

func (k killingPublisher) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := k.Publisher.Publish(ctx, events)
	k.at.reach("published")
	return verdicts
}

func runRelay(ctx context.Context, db *pgxpool.Pool, brokers []string, _ string, at step) error {
	pins, err := relay.Pins(db, "")
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(brokers, publisher.Config{Pin: pins, Observer: publisher.Observer{
		Produced: func(string, int, int, int, time.Duration) { at.reach("produced") },
	}})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	r, err := relay.New(db, killingPublisher{kafka, at}, relay.Config{
		Lease: time.Second, ClaimEvents: 200, ProbeAwake: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Observer: relay.Observer{
			Claimed: func(int, int, time.Duration) { at.reach("claimed") },
			Settled: func(int, time.Duration) { at.reach("settled") },
		},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// workerSteps: a batch is fetched; its effect has run and is not committed; it is committed and its offset is not; the
// offset is.
var workerSteps = []string{"fetched", "effect", "committed", "offset"}

type killingHandler struct {
	inbox.Handler
	at step
}

func (k killingHandler) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	k.at.reach("fetched")
	return k.Handler.Handle(ctx, events)
}

func runWorker(ctx context.Context, db *pgxpool.Pool, brokers []string, topic string, at step) error {
	book, err := ledger.Effect("")
	if err != nil {
		return err
	}
	in, err := inbox.New(db, ledger.Name, inbox.Config{Observer: inbox.Observer{
		Handled: func(inbox.HandledInfo) { at.reach("committed") },
	}})
	if err != nil {
		return err
	}
	effect := func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		err := book(ctx, tx, events)
		at.reach("effect")
		return err
	}
	c, err := consumer.New(killingHandler{in.Batch(effect), at}, brokers, []string{topic}, consumer.Config{
		Group: ledger.Name + "-" + topic, Batch: 20, SessionTimeout: 6 * time.Second, HeartbeatInterval: 200 * time.Millisecond, RebalanceTimeout: 6 * time.Second,
		Logger:   slog.New(slog.DiscardHandler),
		Observer: consumer.Observer{Committed: func(consumer.Partition, int64) { at.reach("offset") }},
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}
