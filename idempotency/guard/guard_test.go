package guard_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// faulty is a store whose calls can fail.
type faulty struct {
	*memstore.Store
	// before and after are called for each call but Get; their error is the call's.
	before, after func(call string) error
	claims        func(store.ClaimOptions) // sees every claim
	mu            sync.Mutex
	calls         map[string]int
}

func newFaulty(m *memstore.Store) *faulty { return &faulty{Store: m, calls: map[string]int{}} }

func (f *faulty) do(call string, do func() error) error {
	f.mu.Lock()
	f.calls[call]++
	f.mu.Unlock()
	if f.before != nil {
		if err := f.before(call); err != nil {
			return err
		}
	}
	err := do()
	if err == nil && f.after != nil {
		err = f.after(call)
	}
	return err
}

func (f *faulty) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[call]
}

func (f *faulty) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (c store.ClaimResult,
	err error,
) {
	if f.claims != nil {
		f.claims(opt)
	}
	err = f.do("claim", func() error { c, err = f.Store.Claim(ctx, r, opt); return err })
	return c, err
}

func (f *faulty) Extend(ctx context.Context, l store.Lease, d time.Duration) error {
	return f.do("extend", func() error { return f.Store.Extend(ctx, l, d) })
}

func (f *faulty) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	return f.do("save", func() error { return f.Store.Save(ctx, l, p) })
}

func (f *faulty) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	return f.do("finish", func() error { return f.Store.Finish(ctx, l, res, keep) })
}

func (f *faulty) Release(ctx context.Context, l store.Lease) error {
	return f.do("release", func() error { return f.Store.Release(ctx, l) })
}

func (f *faulty) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return f.do("mark unknown", func() error { return f.Store.MarkUnknown(ctx, l, reason, after) })
}

// TestDo_InvalidResult: a result that fails Check is an error at once; of a success the outcome is unknown.
func TestDo_InvalidResult(t *testing.T) {
	t.Parallel()
	m := memstore.New(memstore.Config{})
	g := newGuard(t, m, guard.Config{})
	no := errors.New("no")
	for _, c := range []struct {
		res   idempotency.Result
		err   error
		class outcome.Class
		state idempotency.State
	}{
		{idempotency.Result{Code: 503}, nil, outcome.ClassUnknown, idempotency.Unknown},
		{idempotency.Result{Code: 201, Resource: "a\x00b"}, nil, outcome.ClassUnknown, idempotency.Unknown},
		{idempotency.Result{Code: 503}, outcome.Terminal("declined", no), outcome.ClassRetryable, ""},
		{
			idempotency.Result{},
			outcome.Terminal("declined", no), outcome.Unclassified,
			idempotency.FailedReplayable,
		},
	} {
		r := request(1)
		r.Key.Value = rand.Text()
		res, err := g.Do(t.Context(), r, func(context.Context) (idempotency.Result, error) { return c.res, c.err })
		if class, _ := outcome.Of(err); class != c.class || stateOf(t, m, r) != c.state {
			t.Errorf("%+v, %v: %+v, %v, %s", c.res, c.err, res, err, stateOf(t, m, r))
		}
	}
}

var errAway = errors.New("the store does not answer")

func request(body byte) idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "t", Operation: "payment.create", Value: "k-1"},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: [32]byte{body}},
		Input:       []byte{body},
	}
}

func newGuard(t *testing.T, s store.Store, cfg guard.Config) *guard.Guard {
	t.Helper()
	g, err := guard.New(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// advance waits in a synctest bubble.
func advance(d time.Duration) { <-time.After(d) }

func created(context.Context) (idempotency.Result, error) {
	return idempotency.Result{
		Code: 201, Header: map[string][]string{"Location": {"/p/1"}}, Body: []byte("one"),
		Resource: "p1", Schema: 2,
	}, nil
}

// requireSame compares a caller's result, and whether it is a replay.
func requireSame(t *testing.T, got, want idempotency.Result, replayed bool) {
	t.Helper()
	if got.Code != want.Code || string(got.Body) != string(want.Body) || got.Resource != want.Resource ||
		got.Failure != want.Failure ||
		got.Schema != want.Schema || len(got.Header) != len(want.Header) || got.Replayed != replayed {
		t.Errorf("got %+v, want %+v, replayed %v", got, want, replayed)
	}
}

func stateOf(t *testing.T, s store.Store, r idempotency.Request) idempotency.State {
	t.Helper()
	rec, found, err := s.Get(context.Background(), r.Key)
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return ""
	}
	return rec.State
}

func TestDo_ReplayIsIdentical(t *testing.T) {
	t.Parallel()
	g := newGuard(t, memstore.New(memstore.Config{}), guard.Config{})
	first, err := g.Do(t.Context(), request(1), created)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		again, err := g.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
			t.Error("it ran again")
			return idempotency.Result{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		requireSame(t, again, first, true)
		again.Header["Location"][0], again.Body[0] = "mine", 'x' // a caller may do with its own what it likes
	}
}

func TestDo_OneEffectUnderManyCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		var effects, told atomic.Int32
		for range 2 { // two processes
			g := newGuard(t, m, guard.Config{Wait: 5 * time.Second})
			for range 50 {
				go func() {
					res, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
						effects.Add(1)
						advance(time.Second)
						return created(ctx)
					})
					if err != nil || string(res.Body) != "one" {
						t.Errorf("%v, %v", res, err)
					}
					told.Add(1)
				}()
			}
		}
		advance(6 * time.Second)
		if effects.Load() != 1 || told.Load() != 100 {
			t.Errorf("%d effects, %d callers told", effects.Load(), told.Load())
		}
	})
}

// TestPeer_IdempotJS198_HotKeyStorm: concurrent callers of a key in one process share one claim.
func TestPeer_IdempotJS198_HotKeyStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(memstore.New(memstore.Config{}))
		f.before = func(string) error { advance(time.Second); return nil } // a slow store
		g := newGuard(t, f, guard.Config{})
		for round := range 2 { // the first works, the second replays
			var replayed atomic.Int32
			for range 100 {
				go func() {
					res, err := g.Do(t.Context(), request(1), created)
					switch {
					case err == nil && res.Replayed:
						replayed.Add(1)
					case err != nil && !errors.Is(err, idempotency.ErrInProgress):
						t.Error(err)
					}
				}()
			}
			advance(10 * time.Second)
			if n := f.count("claim"); n != round+1 {
				t.Errorf("%d claims after round %d", n, round+1)
			}
			if round == 1 && replayed.Load() != 100 {
				t.Errorf("%d replays", replayed.Load())
			}
		}
	})
}

// TestDo_CallsAfterTheCommit: the work is done, and then a service does not answer, or another database refuses a
// statement or cannot be reached. No attempt may do it again.
func TestDo_CallsAfterTheCommit(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context) error{
		"a service does not answer": func(ctx context.Context) error {
			service := httptest.NewServer(nil)
			service.Close()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, service.URL, nil)
			if err != nil {
				return err
			}
			res, err := http.DefaultClient.Do(r)
			if err == nil {
				err = res.Body.Close()
			}
			return err
		},
		"another database refuses": func(context.Context) error {
			return errors.Join(errors.New("write the audit"), sqlError{"42501", errors.New("no right")})
		},
		"another database is away": func(ctx context.Context) error {
			_, err := pgconn.Connect(ctx, "postgres://127.0.0.1:1/none")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, rows := memstore.New(memstore.Config{}), 0
			g := newGuard(t, m, guard.Config{})
			for range 3 {
				_, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
					rows++ // begin; insert; commit
					return idempotency.Result{Code: 201}, call(ctx)
				})
				if !errors.Is(err, idempotency.ErrUnknown) {
					t.Errorf("the outcome is told as %v", err)
				}
			}
			if rows != 1 {
				t.Errorf("%d rows under one key", rows)
			}
		})
	}
}

// sqlError is a database's error, in the way of pgx and lib/pq.
type sqlError struct {
	state string
	error
}

func (e sqlError) SQLState() string { return e.state }

func (e sqlError) Unwrap() error { return e.error }

func TestDo_Errors(t *testing.T) {
	t.Parallel()
	plain := errors.New("deadlock")
	_, noConnection := pgconn.Connect(t.Context(), "postgres://127.0.0.1:1/none")
	for name, c := range map[string]struct {
		err   error
		state idempotency.State
	}{
		"retryable": {outcome.Retryable(plain), ""},
		"no mark":   {plain, idempotency.Unknown}, // as of a COMMIT whose reply was lost
		"unknown":   {outcome.Unknown(plain), idempotency.Unknown},
		"terminal":  {outcome.Terminal("card_declined", plain), idempotency.FailedReplayable},

		"refused by the database":    {sqlError{"23505", plain}, ""},
		"the server starts":          {sqlError{"57P03", plain}, ""},
		"no connection":              {errors.Join(noConnection, plain), ""},
		"nothing to call":            {&net.OpError{Op: "dial", Err: plain}, idempotency.Unknown}, // after the COMMIT
		"the connection broke":       {&net.OpError{Op: "read", Err: plain}, idempotency.Unknown},
		"shut down, perhaps in time": {sqlError{"57P01", plain}, idempotency.Unknown},
		"lost, by an SQLSTATE":       {sqlError{"08006", plain}, idempotency.Unknown},
		"completion unknown":         {sqlError{"40003", plain}, idempotency.Unknown},
		"no SQLSTATE":                {sqlError{"", plain}, idempotency.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := memstore.New(memstore.Config{})
			g := newGuard(t, m, guard.Config{Classify: guard.ClassifySQL})
			refused := idempotency.Result{Code: 402, Body: []byte("no")}
			res, err := g.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
				return refused, c.err
			})
			if got := stateOf(t, m, request(1)); got != c.state {
				t.Errorf("the state is %q, want %q", got, c.state)
			}
			if name == "terminal" {
				refused.Failure = "card_declined"
				if err != nil {
					t.Error(err)
				}
				requireSame(t, res, refused, false)
				again, err := g.Do(t.Context(), request(1), created)
				if err != nil {
					t.Error(err)
				}
				requireSame(t, again, refused, true)
				return
			}
			if !errors.Is(err, plain) || errors.Is(err, idempotency.ErrUnknown) != (c.state == idempotency.Unknown) {
				t.Errorf("error %v", err)
			}
			// No transient error burns a key.
			again, err := g.Do(t.Context(), request(1), created)
			if c.state == "" && (err != nil || again.Replayed) || c.state != "" &&
				!errors.Is(err, idempotency.ErrUnknown) {
				t.Errorf("the next caller: %+v, %v", again, err)
			}
		})
	}
}

func TestDo_Classify(t *testing.T) {
	t.Parallel()
	m := memstore.New(memstore.Config{})
	lost := errors.New("COMMIT was not answered")
	g := newGuard(t, m, guard.Config{Classify: func(err error) outcome.Class {
		if errors.Is(err, lost) {
			return outcome.ClassUnknown
		}
		return outcome.Unclassified
	}})
	_, err := g.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
		return idempotency.Result{}, lost
	})
	if !errors.Is(err, idempotency.ErrUnknown) || stateOf(t, m, request(1)) != idempotency.Unknown {
		t.Errorf("%v, state %s", err, stateOf(t, m, request(1)))
	}
}

// TestDo_MismatchInEveryState: another command is refused in every state of the first one, and never waits.
func TestDo_MismatchInEveryState(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(context.Context) (idempotency.Result, error){
		"completed": created,
		"refused": func(context.Context) (idempotency.Result, error) {
			return idempotency.Result{}, outcome.Terminal("no", errors.New("no"))
		},
		"unknown": func(context.Context) (idempotency.Result, error) {
			return idempotency.Result{}, outcome.Unknown(errors.New("?"))
		},
		"in progress": func(ctx context.Context) (idempotency.Result, error) {
			<-ctx.Done()
			return idempotency.Result{}, ctx.Err()
		},
		"expired": created,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := memstore.New(memstore.Config{})
				g := newGuard(t, m, guard.Config{Wait: time.Hour})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = g.Do(ctx, request(1), before)
				}()
				synctest.Wait()
				if name == "expired" {
					advance(25 * time.Hour)
				}
				began := time.Now()
				_, err := g.Do(t.Context(), request(2), created)
				var m2 *idempotency.MismatchError
				if !errors.As(err, &m2) || time.Since(began) != 0 {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				cancel()
				<-ended
			})
		})
	}
}

func TestDo_Expired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen int
		g := newGuard(t, memstore.New(memstore.Config{}), guard.Config{
			Keep:     idempotency.Retention{Body: time.Hour, Tombstone: 2 * time.Hour},
			Observer: idempotency.Observer{ExpiredRetry: func(idempotency.ExpiredInfo) { seen++ }},
		})
		if _, err := g.Do(t.Context(), request(1), created); err != nil {
			t.Fatal(err)
		}
		advance(90 * time.Minute)
		_, err := g.Do(t.Context(), request(1), created)
		var e *idempotency.ExpiredError
		if !errors.As(err, &e) || e.Code != 201 || e.Resource != "p1" || seen != 1 {
			t.Errorf("%v, observed %d", err, seen)
		}
		advance(time.Hour)
		if res, err := g.Do(t.Context(), request(1), created); err != nil || res.Replayed {
			t.Errorf("after the tombstone: %+v, %v", res, err)
		}
	})
}

// TestDo_Panic: the panic reaches the caller, and nobody knows what was done before it.
func TestDo_Panic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		g := newGuard(t, m, guard.Config{Wait: time.Minute})
		for range 5 {
			go func() {
				advance(time.Second)
				if res, err := g.Do(t.Context(), request(1), created); !errors.Is(err, idempotency.ErrUnknown) {
					t.Errorf("%+v, %v", res, err)
				}
			}()
		}
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("no panic")
				}
			}()
			_, _ = g.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
				advance(2 * time.Second)
				panic("boom")
			})
		}()
		synctest.Wait()
		if got := stateOf(t, m, request(1)); got != idempotency.Unknown {
			t.Errorf("state %q", got)
		}
	})
}
