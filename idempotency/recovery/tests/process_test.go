package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
	"github.com/effectonce/effectonce/outcome"
)

// process is a process that crashes before or after a write of the store or a call of a provider.
type process struct {
	store.Recoverable
	mu          sync.Mutex
	crashAt     int // step, from 1; 0: never
	steps       int
	dead        bool
	noHeartbeat bool // leases are not extended, and work continues
}

// errDead is an answer of the store, so a crashed process does not retry.
var errDead = outcome.Retryable(errors.New("this process has crashed"))

func (p *process) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return
	}
	if p.steps++; p.steps == p.crashAt {
		p.dead = true
		runtime.Goexit() // no code of the guard can recover from it
	}
}

func (p *process) write(write func() error) error {
	p.step()
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead {
		return errDead
	}
	err := write()
	p.step()
	return err
}

func (p *process) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (c store.ClaimResult,
	err error,
) {
	err = p.write(func() error { c, err = p.Recoverable.Claim(ctx, r, opt); return err })
	return c, err
}

func (p *process) Extend(ctx context.Context, l store.Lease, d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead || p.noHeartbeat {
		return errDead
	}
	return p.Recoverable.Extend(ctx, l, d)
}

func (p *process) Save(ctx context.Context, l store.Lease, pr store.Progress) error {
	return p.write(func() error { return p.Recoverable.Save(ctx, l, pr) })
}

func (p *process) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	return p.write(func() error { return p.Recoverable.Finish(ctx, l, res, keep) })
}

func (p *process) Release(ctx context.Context, l store.Lease) error {
	return p.write(func() error { return p.Recoverable.Release(ctx, l) })
}

func (p *process) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return p.write(func() error { return p.Recoverable.MarkUnknown(ctx, l, reason, after) })
}

func (p *process) Recover(ctx context.Context, opt store.RecoverOptions) (c []store.ClaimResult, err error) {
	err = p.write(func() error { c, err = p.Recoverable.Recover(ctx, opt); return err })
	return c, err
}

func (p *process) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	return p.write(func() error { return p.Recoverable.Postpone(ctx, l, reason, after, stuck) })
}

// run runs work in this process, and reports whether it crashed.
func (p *process) run(work func()) (crashed bool) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		work()
	}()
	<-ended
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

const operation = "payment.create"

func request() idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "t", Operation: operation, Value: "k-1"},
		Fingerprint: idempotency.Fingerprint{Version: 1},
		Input:       []byte(`{"amount":100}`),
	}
}

// classify marks the errors of a provider.
func classify(err error) error {
	switch {
	case errors.Is(err, fakeprovider.ErrRefused):
		return outcome.Terminal("card_declined", err)
	case errors.Is(err, fakeprovider.ErrUnavailable):
		return outcome.Retryable(err)
	}
	return err
}

// world is the state outside the processes.
type world struct {
	store    store.Recoverable
	bank     fakeprovider.Provider
	mail     fakeprovider.Provider
	mu       sync.Mutex
	payments map[string]bool // behind a unique key
	undone   map[string]bool
}

func newWorld() *world {
	return &world{store: memstore.New(memstore.Config{}), payments: map[string]bool{}, undone: map[string]bool{}}
}

// setProcess lets a process crash at the providers' calls.
func (w *world) setProcess(p *process) {
	at := func(string) { p.step() }
	w.bank.At, w.mail.At = at, at
}

// pay is the work: insert a row, charge, send a mail.
func (w *world) pay(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	id, err := op.Local(ctx, "payment", w.insert)
	if err != nil {
		return idempotency.Result{}, err
	}
	card, err := op.CallAs(ctx, "charge", "provider_payment_"+string(id), callProvider(&w.bank, "charge"))
	if err != nil {
		return idempotency.Result{Code: 402}, err
	}
	mail, err := op.Call(ctx, "mail", callProvider(&w.mail, "mail"))
	if err != nil {
		return idempotency.Result{Code: 502}, err
	}
	return idempotency.Result{Code: 201, Resource: string(id), Body: fmt.Appendf(nil, "%s %s of %s", card, mail,
		op.Record().Input)}, nil
}

func (w *world) insert(_ context.Context, c guard.Call) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.payments[c.Key] = true
	return []byte("p-" + c.Key[:8]), nil
}

func callProvider(p *fakeprovider.Provider, what string) func(ctx context.Context, c guard.Call) ([]byte, error) {
	return func(ctx context.Context, c guard.Call) ([]byte, error) {
		id, err := p.Do(ctx, c.Key, what)
		return []byte(id), classify(err)
	}
}

// probe asks the provider of the step.
func (w *world) probe(_ context.Context, q recovery.ProbeRequest) (recovery.ProbeResult, error) {
	p := map[string]*fakeprovider.Provider{
		"charge": &w.bank, "mail": &w.mail, "stock": &w.mail,
		"seat": &w.bank,
	}[q.Step]
	if e, ok := p.Ask(q.Key); ok {
		return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte(e.ID)}, nil
	}
	return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
}

// advance waits in a synctest bubble.
func advance(d time.Duration) { <-time.After(d) }

// recoverAll recovers until no outcome is unknown.
func (w *world) recoverAll(t *testing.T, h recovery.Handler, cfg recovery.Config) {
	t.Helper()
	worker, err := recovery.New(w.store, map[string]recovery.Handler{operation: h}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		advance(time.Minute)
		if _, err := worker.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		stats, err := w.store.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.InProgress+stats.Unknown == 0 || stats.Stuck > 0 {
			return
		}
	}
	rec, _, _ := w.store.Get(t.Context(), request().Key)
	t.Fatalf("still %s at %s: %s", rec.State, rec.Progress.Stage, rec.Reason)
}

// recoverDelay is longer than a guard's RecoverAfter.
const recoverDelay = 10 * time.Second

// recoverOnce runs one recovery in a process.
func recoverOnce(t *testing.T, p *process, h recovery.Handler) (crashed bool) {
	t.Helper()
	worker, err := recovery.New(p, map[string]recovery.Handler{operation: h}, recovery.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return p.run(func() { _, _ = worker.Once(t.Context()) })
}
