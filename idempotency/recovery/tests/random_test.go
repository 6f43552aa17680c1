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

// TestRandom_HistoriesWithCrashes: clients retry over HTTP, through processes that crash at random points or continue
// after their lease; requests and replies of the store are lost, and writes are executed late. Providers fail at
// random, workers crash too, a person resolves stuck operations, and some clients use a key for another command. In the
// end each key has one charge and one mail, or none and a refusal, and no client got another answer.
//
// EFFECTONCE_TEST_SEED is the first seed, EFFECTONCE_TEST_RUNS the number of histories. A seed does not repeat a
// history exactly: the scheduler orders concurrent steps.
func TestRandom_HistoriesWithCrashes(t *testing.T) {
	t.Parallel()
	runInMemory(t, func(*randomRun) {})
}

// runInMemory runs histories in bubbles, over an unreliable network. set configures each.
func runInMemory(t *testing.T, set func(r *randomRun)) {
	t.Helper()
	var all totals
	for seed := range seeds(100, 30) {
		synctest.Test(t, func(t *testing.T) {
			r := newRandomRun(seed, bubble)
			r.store = memstore.New(memstore.Config{})
			r.open = func() store.Recoverable {
				return &network{listerStore: r.store.(listerStore), r: r, latest: map[idempotency.Key]int{}}
			}
			set(r)
			r.play(t)
			all.add(r)
		})
	}
	all.check(t, all.runs)
}

// seeds returns the seeds of the histories to run.
func seeds(normal, short uint64) func(func(uint64) bool) {
	first, _ := strconv.ParseUint(os.Getenv("EFFECTONCE_TEST_SEED"), 10, 64)
	n, err := strconv.ParseUint(os.Getenv("EFFECTONCE_TEST_RUNS"), 10, 64)
	switch {
	case err == nil:
	case testing.Short():
		n = short
	default:
		n = normal
	}
	return func(yield func(uint64) bool) {
		for seed := first; seed < first+n && yield(seed); seed++ {
		}
	}
}

// totals has counts over histories, so that a test without faults fails.
type totals struct {
	mu                                sync.Mutex
	runs, answers, deaths, lost, late int
}

func (a *totals) add(r *randomRun) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs, a.answers, a.deaths, a.lost, a.late = a.runs+1, a.answers+len(r.answers), a.deaths+r.deaths, a.lost+r.lost,
		a.late+r.late
}

// check requires an answer, and at least this count of each kind. On a real server counts depend on its speed.
func (a *totals) check(t *testing.T, least int) {
	t.Helper()
	t.Logf("%d histories: %d answers, %d deaths, %d store calls lost, %d late", a.runs, a.answers, a.deaths, a.lost,
		a.late)
	if a.answers == 0 || min(a.answers, a.deaths, a.lost, a.late) < least {
		t.Error("the histories have too few faults")
	}
}

// listerStore is a store with a Lister.
type listerStore interface {
	store.Recoverable
	store.Lister
}

// timing is the speed and duration of a history.
type timing struct {
	speedup  int           // divides the times of this file, which are for the bubble
	duration time.Duration // of the clients' requests
}

var (
	bubble = timing{1, 10 * time.Minute}
	server = timing{20, time.Minute}
	// slow is for a server whose clients know its time to a second at first.
	slow = timing{5, 30 * time.Second}
)

// randomRun is a history.
type randomRun struct {
	*world
	timing
	open      func() store.Recoverable                      // a process's store, over the network
	http      func(p *process, g *guard.Guard) http.Handler // a process's handler
	effects   func(k idempotency.Key) []int                 // counts of each effect of a key
	operation string
	seed      uint64
	began     time.Time
	random    *rand.Rand // used under mu
	cfg       guard.Config
	recovery  recovery.Config
	handler   recovery.Handler
	inFlight  map[string]int // requests to providers by key
	outage    int            // number of store calls that will be lost
	lateCalls sync.WaitGroup // late executions

	answers            []answer
	deaths, lost, late int
}

// answer is a final answer to a client.
type answer struct {
	key     string
	command byte
	code    int
	body    string
}

func newRandomRun(seed uint64, p timing) *randomRun {
	r := &randomRun{
		world: newWorld(), timing: p, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), inFlight: map[string]int{},
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
	r.http, r.effects = r.guardedHandler, r.charges
	r.handler = recovery.Handler{Rerun: true, Resume: r.pay, Probe: r.probe}
	switch r.random.IntN(4) {
	case 0: // idempotent providers without queries, and an operation in Rerun
		r.handler.Probe, r.handler.IdempotentProvider = nil, true
		r.cfg.Rerun = []string{r.operation}
	case 1: // providers that can only be asked
		r.bank.Forgetful, r.mail.Forgetful = true, true
	case 2: // providers that only people can ask
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

// real returns the real duration for a duration in the bubble.
func (r *randomRun) real(d time.Duration) time.Duration { return d / time.Duration(r.speedup) }

// randomPause waits for a random time up to most.
func (r *randomRun) randomPause(most time.Duration) {
	advance(r.real(time.Duration(r.roll(int(most.Milliseconds()))) * time.Millisecond))
}

// play runs three processes with clients, two workers, and a person; crashed ones are restarted. Then it recovers
// everything, and compares the answers with records and effects.
func (r *randomRun) play(t *testing.T) {
	r.began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), r.real(r.duration))
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
			r.randomPause(20 * time.Second)
			r.resolveStuck(ctx, r.open())
		}
	})
	wg.Wait()
	r.lateCalls.Wait()
	worker, err := recovery.New(r.store, map[string]recovery.Handler{r.operation: r.handler}, r.recovery)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if !r.unfinished(t) {
			break
		}
		advance(r.real(2 * time.Second))
		_, _ = worker.Once(t.Context()) // errors of a busy store are retried
		r.resolveStuck(t.Context(), r.store)
	}
	r.retryAll(t)
	r.check(t)
}

// retryAll sends each command once more at the end.
func (r *randomRun) retryAll(t *testing.T) {
	g, err := guard.New(r.store, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		for command := range byte(2) {
			value := strconv.Itoa(i)
			if _, found, err := r.store.Get(t.Context(), r.request(value, command).Key); found || err != nil {
				r.send(t.Context(), &process{}, g, r.request(value, command))
			}
		}
	}
}

// serve runs processes one after the other, each with concurrent clients.
func (r *randomRun) serve(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		p := &process{Recoverable: r.open(), crashAt: r.roll(60), noHeartbeat: r.roll(4) == 0}
		g, err := guard.New(p, r.cfg)
		if err != nil {
			t.Error(err)
			return
		}
		var clients sync.WaitGroup
		for range 1 + r.roll(4) {
			clients.Go(func() {
				for range 1 + r.roll(5) {
					r.randomPause(8 * time.Second)
					r.sendRequest(ctx, p, g)
				}
			})
		}
		clients.Wait()
		r.countDeath(p)
	}
}

func (r *randomRun) countDeath(p *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.dead {
		r.deaths++
	}
}

// sendRequest sends a client's request, mostly the first command of the key. Some clients hang up early.
func (r *randomRun) sendRequest(ctx context.Context, p *process, g *guard.Guard) {
	var command byte
	if r.roll(5) == 0 {
		command = 1
	}
	if r.roll(6) == 0 {
		hasty, cancel := context.WithTimeout(ctx, r.real(time.Duration(1+r.roll(5000))*time.Millisecond))
		defer cancel()
		ctx = hasty
	}
	r.send(ctx, p, g, r.request(r.key(), command))
}

// A history uses hot of its keys at a time, because most keys soon only replay their answer.
const (
	keys = 15
	hot  = 3
)

// key returns a random key of those in use now.
func (r *randomRun) key() string {
	first := int(time.Since(r.began) * (keys - hot + 1) / r.real(r.duration))
	return strconv.Itoa(min(first, keys-hot) + r.roll(hot))
}

// send sends a request over HTTP, and records a final answer.
func (r *randomRun) send(ctx context.Context, p *process, g *guard.Guard, req idempotency.Request) {
	w, hr := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments",
		bytes.NewReader(req.Input))
	hr.Header.Set(httpedge.HeaderKey, req.Key.Value)
	r.http(p, g).ServeHTTP(w, hr)
	if ctx.Err() == nil && (w.Code == http.StatusCreated || w.Code == http.StatusPaymentRequired) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.answers = append(r.answers, answer{req.Key.Value, req.Fingerprint.Sum[0], w.Code, w.Body.String()})
	}
}

// guardedHandler returns a handler that runs work with providers in a guard.
func (r *randomRun) guardedHandler(p *process, g *guard.Guard) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		res, err := g.Run(hr.Context(), r.read(hr), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			r.randomPause(3 * time.Second)
			p.step()
			if p.noHeartbeat { // it does not notice the end of its lease either
				ctx = context.WithoutCancel(ctx)
				r.randomPause(4 * time.Second)
			}
			return r.pay(ctx, op)
		})
		httpedge.Edge{Logger: quiet}.Write(w, res, err)
	})
}

// read decodes the request of send.
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
		p := &process{Recoverable: r.open(), crashAt: r.roll(60)}
		for alive := true; alive && ctx.Err() == nil; {
			worker, err := recovery.New(p, map[string]recovery.Handler{r.operation: r.handler}, r.recovery)
			if err != nil {
				t.Error(err)
				return
			}
			alive = !p.run(func() { _, _ = worker.Once(ctx) })
			r.randomPause(4 * time.Second)
		}
		r.countDeath(p)
	}
}
