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
	"github.com/effectonce/effectonce/internal/verify/history/tables"
	"github.com/effectonce/effectonce/internal/verify/history/tap"
)

// SessionTimeout is a worker's in its group: a pause for longer makes a zombie of it.
const SessionTimeout = 6 * time.Second

// EffectTimeout is a worker's: the server ends a transaction that is silent for half as long again.
const EffectTimeout = 5 * time.Second

// What a worker is told by signals: to let the next effect hang, and to let it go on.
const (
	SignalHang = syscall.SIGUSR1
	SignalFree = syscall.SIGUSR2
)

// work is a member of the group, with the inbox and its releaser.
func work(ctx context.Context, p *process) error {
	dedup := inbox.ByID
	if p.ByWatermark {
		dedup = inbox.ByWatermark
	}
	in, err := inbox.New(p.db, Consumer, inbox.Config{
		Dedup:  dedup,
		Window: 14 * 24 * time.Hour, MaintainEvery: -1, ReleaseEvery: 300 * time.Millisecond, MaxAttempts: 4,
		Backoff: 20 * time.Millisecond, MaxRetryFor: 3 * time.Second, LockTimeout: 2 * time.Second,
		StatementTimeout: 10 * time.Second, EffectTimeout: EffectTimeout, Logger: p.log,
		Observer: tap.Inbox(p.rec, Consumer),
	})
	if err != nil {
		return err
	}
	x := &effect{process: p, draw: rand.New(rand.NewPCG(p.Seed, p.choices(0)))}
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

// effect books events, and fails now and then in every way that an effect can fail.
type effect struct {
	*process
	mu   sync.Mutex
	draw *rand.Rand
	next bool          // the next effect is to hang
	free chan struct{} // closed: those that hang go on; nil: none does
}

func (x *effect) one(ctx context.Context, tx pgx.Tx, e event.Event) error {
	x.hangs(ctx)
	if err := x.trouble(ctx, tx, e); err != nil {
		return err
	}
	return x.record(ctx, tx, []event.Event{e})
}

func (x *effect) batch(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	x.hangs(ctx)
	for i, e := range events {
		if err := x.trouble(ctx, tx, e); err != nil {
			return inbox.At(i, err)
		}
	}
	return x.record(ctx, tx, events)
}

// listen does what signals say until it is ended.
func (x *effect) listen() (end func()) {
	said, over := make(chan os.Signal, 8), make(chan struct{})
	signal.Notify(said, SignalHang, SignalFree)
	go func() {
		for {
			select {
			case s := <-said:
				x.told(s == SignalHang)
			case <-over:
				return
			}
		}
	}()
	return func() { signal.Stop(said); close(over) }
}

func (x *effect) told(hang bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next = hang
	switch {
	case hang && x.free == nil:
		x.free = make(chan struct{})
	case !hang && x.free != nil:
		close(x.free)
		x.free = nil
	}
}

// hangs waits within the effect when the test has asked for it. One half of the effects does not even hear that its
// time is over.
func (x *effect) hangs(ctx context.Context) {
	x.mu.Lock()
	if !x.next {
		x.mu.Unlock()
		return
	}
	x.next = false
	free, over := x.free, ctx.Done()
	if x.draw.IntN(2) == 0 {
		over = nil
	}
	x.mu.Unlock()
	select {
	case <-over:
	case <-free:
	}
}

// trouble is drawn anew for each run, so that what failed works when it runs again. Only poison never works.
func (x *effect) trouble(ctx context.Context, tx pgx.Tx, e event.Event) error {
	var c content
	if err := json.Unmarshal(e.Payload, &c); err != nil {
		return inbox.Terminal("no_json", errors.New("the payload is no JSON of ours"))
	}
	if c.Poison == "effect" {
		return inbox.Terminal("poison", errors.New("the event is poison"))
	}
	x.mu.Lock()
	kind := x.draw.Float64() / x.Trouble
	x.mu.Unlock()
	switch {
	case kind < 1:
		return inbox.Retryable(errors.New("something else is away"))
	case kind < 2:
		return errors.New("nobody knows why")
	case kind < 3:
		_, err := tx.Exec(ctx, serializationFailure)
		return err
	case kind < 3.2:
		return inbox.Terminal("drawn", errors.New("not this time"))
	case kind < 3.4:
		panic("the effect panics, as it was drawn to")
	}
	return nil
}

// record writes every run down, and the ledger beside it: an effect that runs twice shows in the rows without a
// constraint.
func (x *effect) record(ctx context.Context, tx pgx.Tx, events []event.Event) error {
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
