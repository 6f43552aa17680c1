package roles

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/verify/history/tables"
	"github.com/effectonce/effectonce/verify/history/tap"
)

// SessionTimeout is a worker's in its group. A longer pause makes the worker a zombie.
const SessionTimeout = 6 * time.Second

// EffectTimeout is a worker's. The server ends a transaction that is idle for 1.5 times as long.
const EffectTimeout = 5 * time.Second

// Signals for a worker: the next effect hangs; hanging effects continue.
const (
	SignalHang   = syscall.SIGUSR1
	SignalResume = syscall.SIGUSR2
)

// work runs a member of the group, with the inbox and its releaser.
func work(ctx context.Context, p *process) error {
	dedup, parallel := inbox.ByID, p.Parallel
	if p.ByWatermark {
		dedup, parallel = inbox.ByWatermark, 0
	}
	in, err := inbox.New(p.db, Consumer, inbox.Config{
		Dedup: dedup, Parallel: parallel,
		Window: 14 * 24 * time.Hour, MaintainEvery: -1, ReleaseEvery: 300 * time.Millisecond, MaxAttempts: 4,
		Backoff: 20 * time.Millisecond, MaxRetryFor: 3 * time.Second, LockTimeout: 2 * time.Second,
		StatementTimeout: 10 * time.Second, EffectTimeout: EffectTimeout, Logger: p.log,
		Observer: tap.Inbox(p.rec, Consumer),
	})
	if err != nil {
		return err
	}
	x := &effect{process: p, draw: rand.New(rand.NewPCG(p.Seed, p.seed(0)))}
	defer x.listen()()
	handler := in.Batch(x.batch)
	if p.Each {
		handler = in.Each(x.one)
	}
	c, err := consumer.New(tap.Handler(p.rec, Consumer, handler), p.Brokers, p.Topics, consumer.Config{
		Group: Consumer, ClientID: p.Name, Batch: 200, SessionTimeout: SessionTimeout, HeartbeatInterval: time.Second,
		RebalanceTimeout: 8 * time.Second, DrainTimeout: 3 * time.Second, ResumeEvery: time.Second, Dial: p.dial,
		Logger: p.log, Observer: tap.Consumer(p.rec, Consumer),
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}

// effect records events, and fails randomly in every way in which an effect can fail.
type effect struct {
	*process
	mu     sync.Mutex
	draw   *rand.Rand
	hang   bool          // the next effect hangs
	resume chan struct{} // closed when hanging effects continue; nil: none hangs
}

func (x *effect) one(ctx context.Context, tx pgx.Tx, e event.Event) error {
	x.maybeHang(ctx)
	if err := x.maybeFail(ctx, tx, e); err != nil {
		return err
	}
	return x.insert(ctx, tx, []event.Event{e})
}

func (x *effect) batch(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	x.maybeHang(ctx)
	for _, e := range events {
		if err := x.maybeFail(ctx, tx, e); err != nil {
			return inbox.Of(e, err)
		}
	}
	return x.insert(ctx, tx, events)
}

// listen handles signals until end is called.
func (x *effect) listen() (end func()) {
	signals, done := make(chan os.Signal, 8), make(chan struct{})
	signal.Notify(signals, SignalHang, SignalResume)
	go func() {
		for {
			select {
			case s := <-signals:
				x.setHang(s == SignalHang)
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(signals); close(done) }
}

func (x *effect) setHang(hang bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hang = hang
	switch {
	case hang && x.resume == nil:
		x.resume = make(chan struct{})
	case !hang && x.resume != nil:
		close(x.resume)
		x.resume = nil
	}
}

// maybeHang blocks the effect if the test has asked for it. Half of these effects ignore the end of ctx.
func (x *effect) maybeHang(ctx context.Context) {
	x.mu.Lock()
	if !x.hang {
		x.mu.Unlock()
		return
	}
	x.hang = false
	resume, done := x.resume, ctx.Done()
	if x.draw.IntN(2) == 0 {
		done = nil
	}
	x.mu.Unlock()
	select {
	case <-done:
	case <-resume:
	}
}

// maybeFail draws a failure for each run, so that a retry may succeed. Only poison fails always.
func (x *effect) maybeFail(ctx context.Context, tx pgx.Tx, e event.Event) error {
	var c content
	if err := json.Unmarshal(e.Payload, &c); err != nil {
		return outcome.Terminal("no_json", errors.New("the payload is not JSON"))
	}
	if c.Poison == "effect" {
		return outcome.Terminal("poison", errors.New("the event is poison"))
	}
	x.mu.Lock()
	kind := x.draw.Float64() / x.FailureRate
	x.mu.Unlock()
	switch {
	case kind < 1:
		return outcome.Retryable(errors.New("another service is away"))
	case kind < 2:
		return errors.New("unclassified error")
	case kind < 3:
		_, err := tx.Exec(ctx, serializationFailure)
		return err
	case kind < 3.2:
		return outcome.Terminal("drawn", errors.New("random terminal error"))
	case kind < 3.4:
		panic("random panic")
	}
	return nil
}

// insert records every run, and the ledger. The table of runs has no constraint, so that it shows an effect that ran
// twice.
func (x *effect) insert(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	if err := tap.Ran(x.rec, Consumer, events); err != nil {
		return err
	}
	n := len(events)
	ids, tenants, topics, keys, business := make([]string, n), make([]string, n), make([]string, n), make([]string, n),
		make([]string, n)
	versions, partitions, offsets := make([]int64, n), make([]int32, n), make([]int64, n)
	for i, e := range events {
		ids[i], tenants[i], topics[i], keys[i] = e.ID.String(), e.Tenant, e.Topic, e.Key
		versions[i], _ = strconv.ParseInt(e.Headers[tables.HeaderVersion], 10, 64)
		business[i] = e.Headers[tables.HeaderBusiness]
		partitions[i], offsets[i] = e.Position.Partition, e.Position.Offset
	}
	if _, err := tx.Exec(ctx, applyAll, Consumer, ids, tenants, topics, keys, versions, business, partitions,
		offsets); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, ledgerAll, Consumer, business, ids)
	return err
}
