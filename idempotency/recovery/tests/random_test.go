package recovery_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
)

// TestRandom_HistoriesWithCrashes: clients of a few keys retry over HTTP, through processes that die at random points
// or work on after their lease; requests and replies of the store get lost, and its writes are executed late. Providers
// fail at random, workers die too, and a person ends what recovery gives up; some clients use a key for another
// command. In the end each key has one charge and one mail, or none and a refusal, and no client was ever told anything
// else.
//
// EFFECTONCE_TEST_SEED begins elsewhere, EFFECTONCE_TEST_RUNS makes more histories. A seed does not repeat a history to
// the last step: what happens at the same time is the scheduler's to order.
func TestRandom_HistoriesWithCrashes(t *testing.T) {
	t.Parallel()
	inMemory(t, func(*randomRun) {})
}

// inMemory plays histories in bubbles, over a network that fails. set makes of each what it is about.
func inMemory(t *testing.T, set func(r *randomRun)) {
	t.Helper()
	var all tally
	for seed := range seeds(100, 30) {
		synctest.Test(t, func(t *testing.T) {
			r := newRandomRun(seed, bubble)
			r.store = memstore.New(memstore.Config{})
			r.open = func() store.Recoverable {
				return &network{person: r.store.(person), r: r, latest: map[idempotency.Key]int{}}
			}
			set(r)
			r.play(t)
			all.add(r)
		})
	}
	all.check(t, all.runs)
}

// seeds are as many as are asked for.
func seeds(usual, short uint64) func(func(uint64) bool) {
	first, _ := strconv.ParseUint(os.Getenv("EFFECTONCE_TEST_SEED"), 10, 64)
	n, err := strconv.ParseUint(os.Getenv("EFFECTONCE_TEST_RUNS"), 10, 64)
	switch {
	case err == nil:
	case testing.Short():
		n = short
	default:
		n = usual
	}
	return func(yield func(uint64) bool) {
		for seed := first; seed < first+n && yield(seed); seed++ {
		}
	}
}

// tally counts what histories were about: a test that finds nothing must have looked.
type tally struct {
	mu                             sync.Mutex
	runs, told, deaths, lost, late int
}

func (a *tally) add(r *randomRun) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs, a.told, a.deaths, a.lost, a.late = a.runs+1, a.told+len(r.told), a.deaths+r.deaths, a.lost+r.lost,
		a.late+r.lates
}

// check wants an answer, and at least so much of each thing: on a real server it depends on its speed how much there
// is.
func (a *tally) check(t *testing.T, least int) {
	t.Helper()
	t.Logf("%d histories: %d answers, %d deaths, %d calls of the store lost, %d late", a.runs, a.told, a.deaths, a.lost,
		a.late)
	if a.told == 0 || min(a.told, a.deaths, a.lost, a.late) < least {
		t.Error("that says little")
	}
}

// person is a store with the part that people's tools use.
type person interface {
	store.Recoverable
	store.Lister
}

// pace is how a history passes the time.
type pace struct {
	faster int           // than in the bubble, whose times this file names
	span   time.Duration // of the clients' part
}

var (
	bubble = pace{1, 10 * time.Minute}
	server = pace{20, time.Minute}
	// slow is for a server whose clock each client works out, to a second at first.
	slow = pace{5, 30 * time.Second}
)

// randomRun is one history.
type randomRun struct {
	*world
	pace
	open      func() store.Recoverable                      // as a process has it: over a network
	http      func(p *process, g *guard.Guard) http.Handler // a process' handler
	effects   func(k idempotency.Key) []int                 // how often each effect of a key is there
	operation string
	seed      uint64
	began     time.Time
	random    *rand.Rand // used under mu
	cfg       guard.Config
	recovery  recovery.Config
	handler   recovery.Handler
	sending   map[string]int // by key: who may have a request to a provider under way
	away      int            // so many calls of the store get lost
	pending   sync.WaitGroup // what is late

	told                []answer
	deaths, lost, lates int
}

// answer is what a client was told that is final.
type answer struct {
	key     string
	command byte
	code    int
	body    string
}

func newRandomRun(seed uint64, p pace) *randomRun {
	r := &randomRun{
		world: newWorld(), pace: p, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), sending: map[string]int{},
		operation: fmt.Sprintf("payment.create.%d", seed),
	}
	r.cfg = guard.Config{
		Lease: r.real(5 * time.Second), RecordTimeout: r.real(10 * time.Second), RecoverAfter: r.real(5 * time.Second),
		Wait: r.real(time.Duration(r.random.IntN(3)) * time.Second),
	}
	r.recovery = recovery.Config{
		Lease: r.real(5 * time.Second), Grace: r.real(5 * time.Second), Backoff: r.real(time.Second),
		MaxBackoff: r.real(time.Minute), SweepEvery: -1, SkipUnhandled: true,
		MaxAttempts: []int{0, 1, 3}[r.random.IntN(3)],
	}
	r.http, r.effects = r.paying, r.charges
	r.handler = recovery.Handler{Resume: r.pay, Probe: r.look}
	switch r.random.IntN(4) {
	case 0: // providers that only know keys, and an operation that may be run again
		r.handler.Probe, r.handler.IdempotentProvider = nil, true
		r.cfg.Rerun = []string{r.operation}
	case 1: // that can only be asked
		r.bank.Forgetful, r.mail.Forgetful = true, true
	case 2: // that only people can ask
		r.bank.Forgetful, r.mail.Forgetful = true, true
		r.handler.Probe = nil
	}
	for range 30 * keys / hot {
		r.bank.Next(fakeprovider.Fault(max(0, r.random.IntN(12)-7)))
		r.mail.Next([]fakeprovider.Fault{
			0, 0, 0, fakeprovider.Unavailable, fakeprovider.LostRequest,
			fakeprovider.LostAnswer,
		}[r.random.IntN(6)])
	}
	return r
}

func (r *randomRun) roll(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.IntN(n)
}

// real is a time of the bubble as it passes here.
func (r *randomRun) real(d time.Duration) time.Duration { return d / time.Duration(r.faster) }

// pass lets up to so much time pass.
func (r *randomRun) pass(most time.Duration) {
	pass(r.real(time.Duration(r.roll(int(most.Milliseconds()))) * time.Millisecond))
}

// play lets three processes serve clients, two workers recover and a person look; who dies is started again. Then all
// that is open is ended, and what clients were told is compared with what is recorded and done.
func (r *randomRun) play(t *testing.T) {
	r.began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), r.real(r.span))
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { r.serve(ctx, t) })
	}
	for range 2 {
		wg.Go(func() { r.recover(ctx, t) })
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			r.pass(20 * time.Second)
			r.decide(ctx, r.open())
		}
	})
	wg.Wait()
	r.pending.Wait()
	worker, err := recovery.New(r.store, map[string]recovery.Handler{r.operation: r.handler}, r.recovery)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if !r.unfinished(t) {
			break
		}
		pass(r.real(2 * time.Second))
		_, _ = worker.Once(t.Context()) // what a busy store does not answer is asked again
		r.decide(t.Context(), r.store)
	}
	r.comeAgain(t)
	r.check(t)
}

// comeAgain lets each command's client ask a last time, when all is over.
func (r *randomRun) comeAgain(t *testing.T) {
	g, err := guard.New(r.store, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		for command := range byte(2) {
			value := strconv.Itoa(i)
			if _, found, err := r.store.Get(t.Context(), r.request(value, command).Key); found || err != nil {
				r.ask(t.Context(), &process{}, g, r.request(value, command))
			}
		}
	}
}

// serve is a process after the other, each with a few clients at a time.
func (r *randomRun) serve(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		p := &process{Recoverable: r.open(), at: r.roll(60), deaf: r.roll(4) == 0}
		g, err := guard.New(p, r.cfg)
		if err != nil {
			t.Error(err)
			return
		}
		var clients sync.WaitGroup
		for range 1 + r.roll(4) {
			clients.Go(func() {
				for range 1 + r.roll(5) {
					r.pass(8 * time.Second)
					r.come(ctx, p, g)
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

// come is one request of one client: mostly the first command of the key. Some clients hang up early.
func (r *randomRun) come(ctx context.Context, p *process, g *guard.Guard) {
	var command byte
	if r.roll(5) == 0 {
		command = 1
	}
	if r.roll(6) == 0 {
		hasty, cancel := context.WithTimeout(ctx, r.real(time.Duration(1+r.roll(5000))*time.Millisecond))
		defer cancel()
		ctx = hasty
	}
	r.ask(ctx, p, g, r.request(r.key(), command))
}

// Each history has so many keys, of which hot are in use at a time: soon after their first answer most keys only replay
// it.
const (
	keys = 15
	hot  = 3
)

// key draws a key of those that are in use now.
func (r *randomRun) key() string {
	first := int(time.Since(r.began) * (keys - hot + 1) / r.real(r.span))
	return strconv.Itoa(min(first, keys-hot) + r.roll(hot))
}

// ask asks over HTTP, and notes what is said for good.
func (r *randomRun) ask(ctx context.Context, p *process, g *guard.Guard, req idempotency.Request) {
	w, hr := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments",
		bytes.NewReader(req.Input))
	hr.Header.Set(httpedge.HeaderKey, req.Key.Value)
	r.http(p, g).ServeHTTP(w, hr)
	if ctx.Err() == nil && (w.Code == http.StatusCreated || w.Code == http.StatusPaymentRequired) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, answer{req.Key.Value, req.Fingerprint.Sum[0], w.Code, w.Body.String()})
	}
}

// paying is a handler that comes first, and guards work with providers.
func (r *randomRun) paying(p *process, g *guard.Guard) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		res, err := g.Run(hr.Context(), r.read(hr), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			r.pass(3 * time.Second)
			p.reach()
			if p.deaf { // and it does not notice when its lease ends
				ctx = context.WithoutCancel(ctx)
				r.pass(4 * time.Second)
			}
			return r.pay(ctx, op)
		})
		httpedge.Edge{Logger: quiet}.Write(w, res, err)
	})
}

// read is the request that ask wrote.
func (r *randomRun) read(hr *http.Request) idempotency.Request {
	body, err := io.ReadAll(hr.Body)
	if err != nil {
		panic(err)
	}
	return r.request(hr.Header.Get(httpedge.HeaderKey), body[0]-'a')
}

func (r *randomRun) request(value string, command byte) idempotency.Request {
	req := request()
	req.Key.Operation, req.Key.Value = r.operation, value
	req.Fingerprint.Sum[0], req.Input = command, []byte{'a' + command}
	return req
}

func (r *randomRun) recover(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		p := &process{Recoverable: r.open(), at: r.roll(60)}
		for alive := true; alive && ctx.Err() == nil; {
			worker, err := recovery.New(p, map[string]recovery.Handler{r.operation: r.handler}, r.recovery)
			if err != nil {
				t.Error(err)
				return
			}
			alive = !p.live(func() { _, _ = worker.Once(ctx) })
			r.pass(4 * time.Second)
		}
		r.died(p)
	}
}
