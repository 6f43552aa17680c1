package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/fakeprovider"
)

// TestRandom_HistoriesWithCrashes: clients of a few keys retry through processes that die at random points or work on after their lease, with providers that
// fail at random and workers that die too; some clients use a key for another command. In the end each key has one charge and one mail,
// or none and a refusal, and nobody was ever told anything else.
func TestRandom_HistoriesWithCrashes(t *testing.T) {
	t.Parallel()
	seeds := uint64(100)
	if testing.Short() {
		seeds = 30
	}
	var told, deaths int
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			r := newRandomRun(seed)
			r.play(t)
			r.check(t, seed)
			told += len(r.told)
			deaths += r.deaths
		})
	}
	t.Logf("%d answers, %d deaths", told, deaths)
	if told < int(seeds) || deaths < int(seeds) {
		t.Errorf("%d answers and %d deaths say little", told, deaths)
	}
}

// randomRun is one history.
type randomRun struct {
	*world
	random *rand.Rand // used under mu
	told   []answer
	deaths int
	cfg    idempotency.Config
	w      recovery.Handler
}

// answer is a result that a client was given.
type answer struct {
	key  string
	sum  byte
	code int
	body string
}

func newRandomRun(seed uint64) *randomRun {
	r := &randomRun{world: newWorld(), random: rand.New(rand.NewPCG(seed, 1))}
	r.cfg = idempotency.Config{Lease: 5 * time.Second, Wait: time.Duration(r.random.IntN(3)) * time.Second}
	r.w = recovery.Handler{Resume: r.pay, Probe: r.probe}
	switch r.random.IntN(3) {
	case 0: // a provider that only knows keys, and an operation that may be run again
		r.w.Probe, r.w.SameKey = nil, true
		r.cfg.Rerun = []string{operation}
	case 1: // one that can only be asked
		r.bank.Forgetful, r.mail.Forgetful = true, true
	}
	for range 30 {
		r.bank.Next(fakeprovider.Fault(max(0, r.random.IntN(12)-7)))
		r.mail.Next([]fakeprovider.Fault{0, 0, 0, fakeprovider.Unavailable, fakeprovider.LostRequest, fakeprovider.LostAnswer}[r.random.IntN(6)])
	}
	return r
}

func (r *randomRun) roll(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.IntN(n)
}

// play lets three processes serve clients, and two workers recover; who dies is started again.
func (r *randomRun) play(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { r.serve(ctx, t) })
	}
	for range 2 {
		wg.Go(func() { r.recover(ctx, t) })
	}
	wg.Wait()
	worker, err := recovery.New(r.store, map[string]recovery.Handler{operation: r.w}, recovery.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		pass(10 * time.Minute)
		if _, err := worker.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// serve is a process after the other, each with a few clients at a time.
func (r *randomRun) serve(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		p := &process{Store: r.store, at: r.roll(60), deaf: r.roll(4) == 0}
		g, err := idempotency.New(p, r.cfg)
		if err != nil {
			t.Error(err)
			return
		}
		var clients sync.WaitGroup
		for range 1 + r.roll(4) {
			clients.Go(func() {
				for range 1 + r.roll(5) {
					pass(time.Duration(r.roll(8000)) * time.Millisecond)
					r.ask(ctx, p, g)
				}
			})
		}
		clients.Wait()
		r.died(p)
	}
}

func (r *randomRun) died(p *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.dead {
		r.deaths++
	}
}

// ask is one request of one client: mostly the first command of the key.
func (r *randomRun) ask(ctx context.Context, p *process, g *idempotency.Guard) {
	req := request()
	req.Key.Value = fmt.Sprint(r.roll(3))
	if r.roll(5) == 0 {
		req.Fingerprint.Sum[0], req.Input = 1, []byte("another")
	}
	res, err := g.Run(ctx, req, func(ctx context.Context, op *idempotency.Op) (idempotency.Result, error) {
		pass(time.Duration(r.roll(3000)) * time.Millisecond)
		p.reach()
		if p.deaf { // and it does not notice when its lease ends
			ctx = context.WithoutCancel(ctx)
			pass(time.Duration(r.roll(4000)) * time.Millisecond)
		}
		return r.pay(ctx, op)
	})
	if err != nil && !errors.Is(err, idempotency.ErrUnrecorded) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, answer{req.Key.Value, req.Fingerprint.Sum[0], res.Code, string(res.Body)})
}

func (r *randomRun) recover(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		p := &process{Store: r.store, at: r.roll(60)}
		worker, err := recovery.New(p, map[string]recovery.Handler{operation: r.w}, recovery.Config{Lease: 5 * time.Second, SweepEvery: -1})
		if err != nil {
			t.Error(err)
			return
		}
		for p.live(func() { _, _ = worker.Once(ctx) }) {
			r.died(p)
			p = &process{Store: r.store}
			if worker, err = recovery.New(p, map[string]recovery.Handler{operation: r.w}, recovery.Config{Lease: 5 * time.Second}); err != nil {
				t.Error(err)
			}
		}
		pass(2 * time.Second)
	}
}

func (r *randomRun) check(t *testing.T, seed uint64) {
	t.Helper()
	for _, value := range []string{"0", "1", "2"} {
		req := request()
		req.Key.Value = value
		rec, found, err := r.store.Get(t.Context(), req.Key)
		if err != nil {
			t.Fatal(err)
		}
		effects := map[string]int{}
		for step, p := range map[string]*fakeprovider.Provider{"charge": &r.bank, "mail": &r.mail} {
			down := idempotency.StepKey(req.Key, step)
			if step == "charge" {
				down = "provider_payment_p-" + idempotency.StepKey(req.Key, "payment")[:8]
			}
			for _, e := range p.Effects() {
				if e.Key == down {
					effects[step]++
				}
			}
		}
		want := 0
		switch {
		case found && rec.State == idempotency.Completed:
			want = 1
		case found && rec.State != idempotency.FailedReplayable:
			t.Errorf("seed %d: key %s is %s at the end: %s", seed, value, rec.State, rec.Reason)
			continue
		}
		if effects["charge"] != want || effects["mail"] != want {
			t.Errorf("seed %d: key %s (%s) has %v", seed, value, rec.State, effects)
		}
		for _, a := range r.told {
			if a.key == value && (!found || a.sum != rec.Fingerprint.Sum[0] || a.code != rec.Result.Code || a.body != string(rec.Result.Body)) {
				t.Errorf("seed %d: somebody was told %+v, the record is %+v", seed, a, rec.Result)
			}
		}
	}
}
