package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
)

// makeUnknown makes an operation whose outcome is unknown, because the charge's request or answer was lost.
func (w *world) makeUnknown(t *testing.T, fault fakeprovider.Fault) {
	t.Helper()
	w.bank.Next(fault)
	g, err := guard.New(w.store, guard.Config{RecoverAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Run(t.Context(), request(), w.pay); !errors.Is(err, idempotency.ErrUnknown) {
		t.Fatal(err)
	}
}

// recoverTimes recovers several times, ten minutes apart, and returns the outcomes.
func (w *world) recoverTimes(t *testing.T, handlers map[string]recovery.Handler, cfg recovery.Config, times int) (
	got []recovery.RecoveredInfo,
) {
	t.Helper()
	cfg.Observer.Recovered = func(i recovery.RecoveredInfo) { got = append(got, i) }
	worker, err := recovery.New(w.store, handlers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range times {
		advance(10 * time.Minute)
		if _, err := worker.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestWorker_Outcomes(t *testing.T) {
	t.Parallel()
	answer := func(f recovery.ProbeOutcome) recovery.Probe {
		return func(context.Context, recovery.ProbeRequest) (recovery.ProbeResult, error) {
			return recovery.ProbeResult{Outcome: f, Code: "too_late", Data: []byte("x")}, nil
		}
	}
	for name, c := range map[string]struct {
		handler func(w *world) recovery.Handler
		want    recovery.Outcome
		state   idempotency.State
		reason  string
	}{
		"it happened": {
			func(w *world) recovery.Handler { return recovery.Handler{Rerun: true, Probe: w.probe, Resume: w.pay} },
			recovery.Completed, idempotency.Completed, "",
		},
		"it was refused": {func(w *world) recovery.Handler {
			return recovery.Handler{Rerun: true, Probe: answer(recovery.Refused), Resume: w.pay}
		}, recovery.Failed, idempotency.FailedReplayable, ""},
		"the outcome is not known yet": {func(w *world) recovery.Handler {
			return recovery.Handler{Rerun: true, Probe: answer(recovery.Undetermined), Resume: w.pay}
		}, recovery.Postponed, idempotency.Unknown, "not known yet"},
		"the provider cannot be asked": {
			func(w *world) recovery.Handler { return recovery.Handler{Rerun: true, Resume: w.pay} },
			recovery.Stuck, idempotency.Unknown, "neither asked nor called again",
		},
		"only its local phase happened": {func(*world) recovery.Handler {
			return recovery.Handler{Probe: answer(recovery.NotHappened)}
		}, recovery.Postponed, idempotency.Unknown, "only the caller's next attempt can continue"},
		"neither Resume nor Compensate": {func(*world) recovery.Handler {
			return recovery.Handler{Probe: answer(recovery.Happened)}
		}, recovery.Stuck, idempotency.Unknown, "neither resume nor compensate"},
		"the probe fails": {func(w *world) recovery.Handler {
			return recovery.Handler{Rerun: true, Resume: w.pay, Probe: func(context.Context,
				recovery.ProbeRequest) (recovery.ProbeResult,
				error,
			) {
				return recovery.ProbeResult{Outcome: recovery.NotHappened}, errors.New("no route")
			}}
		}, recovery.Postponed, idempotency.Unknown, "no route"},
		"the handler panics": {func(w *world) recovery.Handler {
			return recovery.Handler{Rerun: true, Probe: w.probe, Resume: func(context.Context, *guard.Op) (
				idempotency.Result, error,
			) {
				panic("boom")
			}}
		}, recovery.Postponed, idempotency.Unknown, "panicked with a string"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.makeUnknown(t, fakeprovider.LostAnswer)
				got := w.recoverTimes(t, map[string]recovery.Handler{operation: c.handler(w)}, recovery.Config{}, 1)
				if len(got) != 1 || got[0].Outcome != c.want || got[0].Operation != operation || got[0].Attempts != 1 {
					t.Fatalf("%+v", got)
				}
				rec, _, err := w.store.Get(t.Context(), request().Key)
				if err != nil || rec.State != c.state || rec.Stuck != (c.want == recovery.Stuck) ||
					!strings.Contains(rec.Reason, c.reason) {
					t.Errorf("%s, stuck %v, %q, %v", rec.State, rec.Stuck, rec.Reason, err)
				}
				if n := len(w.bank.Effects()); n != 1 {
					t.Errorf("%d charges", n)
				}
			})
		})
	}
}

// TestWorker_ReleasesIfNothingHappened: the only recorded step is a call that did not happen.
func TestWorker_ReleasesIfNothingHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		g, err := guard.New(w.store, guard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.Run(t.Context(), request(), func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			_, err := op.Call(ctx, "charge", func(context.Context, guard.Call) ([]byte, error) {
				return nil,
					errors.New("no answer")
			})
			return idempotency.Result{}, err
		})
		if !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
		didNot := func(context.Context, recovery.ProbeRequest) (recovery.ProbeResult, error) {
			return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
		}
		got := w.recoverTimes(t, map[string]recovery.Handler{operation: {Probe: didNot}}, recovery.Config{}, 1)
		if _, found, err := w.store.Get(t.Context(), request().Key); len(got) != 1 ||
			got[0].Outcome != recovery.Released || found || err != nil {
			t.Errorf("%+v, there: %v, %v", got, found, err)
		}
	})
}

// TestWorker_GivesUp: delays grow, and after MaxAttempts the operation is stuck, and not processed again.
func TestWorker_GivesUp(t *testing.T) {
	t.Parallel()
	for name, handlers := range map[string]map[string]recovery.Handler{
		"no answer": {operation: {Probe: func(context.Context, recovery.ProbeRequest) (recovery.ProbeResult, error) {
			return recovery.ProbeResult{}, nil
		}}},
		"no handler": {"another": {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.makeUnknown(t, fakeprovider.LostRequest)
				got := w.recoverTimes(t, handlers, recovery.Config{MaxAttempts: 3}, 5)
				var all []recovery.Outcome
				for _, i := range got {
					all = append(all, i.Outcome)
				}
				if !slices.Equal(all, []recovery.Outcome{recovery.Postponed, recovery.Postponed, recovery.Stuck}) ||
					got[2].Err == nil || w.bank.Calls() != 1 {
					t.Errorf("%v, the provider was called %d times", got, w.bank.Calls())
				}
			})
		})
	}
}

func TestWorker_SkipUnhandled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.makeUnknown(t, fakeprovider.LostRequest)
		if got := w.recoverTimes(t, map[string]recovery.Handler{"another": {}}, recovery.Config{SkipUnhandled: true},
			3); len(got) > 0 {
			t.Errorf("%v", got)
		}
	})
}

// TestWorker_ProbeLocal: the work of Guard.Do has no recovery points; the service's own database is asked.
func TestWorker_ProbeLocal(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[recovery.ProbeOutcome]recovery.Outcome{
		recovery.Happened: recovery.Completed, recovery.NotHappened: recovery.Released,
		recovery.Undetermined: recovery.Postponed,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			p := &process{Recoverable: w.store, crashAt: 2} // it crashes as owner
			g, err := guard.New(p, guard.Config{})
			if err != nil {
				t.Fatal(err)
			}
			work := func(context.Context) (idempotency.Result, error) { return idempotency.Result{Code: 201}, nil }
			p.run(func() { _, _ = g.Do(t.Context(), request(), work) })
			got := w.recoverTimes(t, map[string]recovery.Handler{operation: {
				ProbeLocal: func(_ context.Context, rec store.Record) (recovery.ProbeOutcome, idempotency.Result,
					error,
				) {
					return outcome, idempotency.Result{Code: 201, Body: rec.Input}, nil
				},
			}}, recovery.Config{}, 1)
			if len(got) != 1 || got[0].Outcome != want {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestWorker_NothingRecorded: work without a recovery point may have had its effect, as that of a guard's Do whose
// process died after COMMIT. It runs again only if its handler says that this is harmless.
func TestWorker_NothingRecorded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler func(run func(context.Context, *guard.Op) (idempotency.Result, error)) recovery.Handler
		want    recovery.Outcome
		ran     int
	}{
		"Resume": {func(run func(context.Context, *guard.Op) (idempotency.Result, error)) recovery.Handler {
			return recovery.Handler{Resume: run}
		}, recovery.Stuck, 0},
		"Compensate": {func(run func(context.Context, *guard.Op) (idempotency.Result, error)) recovery.Handler {
			return recovery.Handler{Compensate: run}
		}, recovery.Stuck, 0},
		"Rerun": {func(run func(context.Context, *guard.Op) (idempotency.Result, error)) recovery.Handler {
			return recovery.Handler{Rerun: true, Resume: run}
		}, recovery.Completed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, ran := newWorld(), 0
				p := &process{Recoverable: w.store, crashAt: 2}
				g, err := guard.New(p, guard.Config{})
				if err != nil {
					t.Fatal(err)
				}
				p.run(func() {
					_, _ = g.Do(t.Context(), request(), func(context.Context) (idempotency.Result, error) {
						return idempotency.Result{Code: 201}, nil
					})
				})
				h := c.handler(func(context.Context, *guard.Op) (idempotency.Result, error) {
					ran++
					return idempotency.Result{Code: 201}, nil
				})
				got := w.recoverTimes(t, map[string]recovery.Handler{operation: h}, recovery.Config{}, 1)
				if len(got) != 1 || got[0].Outcome != c.want || ran != c.ran {
					t.Errorf("%+v, it ran %d times", got, ran)
				}
			})
		})
	}
}

// TestWorker_CountsWhatItBegins: workers of a provider that hangs count the attempts that they make, and no others.
func TestWorker_CountsWhatItBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const operations = 60
		m := memstore.New(memstore.Config{})
		r, step := request(), store.Step{Name: "charge", State: store.StepSent, Key: "k"}
		progress := store.Progress{Stage: idempotency.ProviderRequestSent, Steps: []store.Step{step}}
		keyOf := func(i int) idempotency.Key {
			k := r.Key
			k.Value = fmt.Sprint(i)
			return k
		}
		for i := range operations {
			r.Key = keyOf(i)
			c, err := m.Claim(t.Context(), r, store.ClaimOptions{Token: "an owner", Lease: time.Second})
			if err == nil {
				err = m.Save(t.Context(), c.Lease, progress)
			}
			if err == nil {
				err = m.MarkUnknown(t.Context(), c.Lease, "no answer", 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var probes atomic.Int64
		h := recovery.Handler{Probe: func(ctx context.Context, _ recovery.ProbeRequest) (recovery.ProbeResult, error) {
			probes.Add(1)
			<-ctx.Done()
			return recovery.ProbeResult{}, ctx.Err()
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 21*time.Minute)
		defer cancel()
		var workers sync.WaitGroup
		for range 10 {
			worker, err := recovery.New(m, map[string]recovery.Handler{operation: h}, recovery.Config{})
			if err != nil {
				t.Fatal(err)
			}
			workers.Go(func() { _ = worker.Run(ctx) })
		}
		workers.Wait()
		attempts := 0
		for i := range operations {
			rec, _, err := m.Get(t.Context(), keyOf(i))
			if err != nil {
				t.Fatal(err)
			}
			attempts += rec.Attempts
		}
		if n := probes.Load(); n == 0 || int64(attempts) != n {
			t.Errorf("%d attempts are counted, %d were made", attempts, n)
		}
	})
}

// TestWorker_ManyWorkers: each operation is recovered once.
func TestWorker_ManyWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const operations = 60
		m := memstore.New(memstore.Config{})
		r := request()
		for i := range operations {
			r.Key.Value = fmt.Sprint(i)
			if _, err := m.Claim(t.Context(), r, store.ClaimOptions{
				Token: "a crashed owner, of 128 bits",
				Lease: time.Second,
			}); err != nil {
				t.Fatal(err)
			}
		}
		var runs atomic.Int32
		h := recovery.Handler{Rerun: true, Resume: func(context.Context, *guard.Op) (idempotency.Result, error) {
			runs.Add(1)
			advance(45 * time.Second) // longer than the lease
			return idempotency.Result{Code: 200}, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		const workers = 4
		for range workers {
			worker, err := recovery.New(m, map[string]recovery.Handler{operation: h}, recovery.Config{Parallel: 20})
			if err != nil {
				t.Fatal(err)
			}
			go func() { done <- worker.Run(ctx) }()
		}
		advance(10 * time.Minute)
		cancel()
		for range workers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		stats, err := m.Stats(t.Context())
		if err != nil || stats.InProgress+stats.Unknown > 0 || runs.Load() != operations {
			t.Errorf("%+v, %d runs, %v", stats, runs.Load(), err)
		}
	})
}

// TestRun_Drains: operations in progress at the end of Run are finished within Drain, and then cancelled.
func TestRun_Drains(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes time.Duration
		state idempotency.State
		after time.Duration
	}{
		"in time":  {5 * time.Second, idempotency.Completed, 5 * time.Second},
		"too long": {time.Minute, idempotency.Unknown, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.makeUnknown(t, fakeprovider.LostAnswer)
				ctx, cancel := context.WithCancel(t.Context())
				worker, err := recovery.New(w.store, map[string]recovery.Handler{operation: {
					Probe: w.probe, Resume: func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
						cancel()
						select {
						case <-ctx.Done():
							return idempotency.Result{}, ctx.Err()
						case <-time.After(c.takes):
							return w.pay(ctx, op)
						}
					},
				}}, recovery.Config{})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if err := worker.Run(ctx); err != nil {
					t.Error(err)
				}
				rec, _, err := w.store.Get(t.Context(), request().Key)
				if took := time.Since(began); err != nil || rec.State != c.state || took < c.after || took > c.after+
					time.Second {
					t.Errorf("%s after %v, %v", rec.State, took, err)
				}
			})
		})
	}
}

// TestRun_Sweeps expired results and keys, and no unknown ones.
func TestRun_Sweeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, swept := newWorld(), 0
		w.makeUnknown(t, fakeprovider.LostAnswer)
		g, err := guard.New(w.store, guard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		other := request()
		other.Key.Value = "k-2"
		if _, err := g.Run(t.Context(), other, w.pay); err != nil {
			t.Fatal(err)
		}
		worker, err := recovery.New(w.store, nil, recovery.Config{
			SkipUnhandled: true, Observer: recovery.Observer{
				Swept: func(s store.SweepResult) { swept += s.Bodies + s.Tombstones },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Hour)
		defer cancel()
		if err := worker.Run(ctx); err != nil {
			t.Error(err)
		}
		if rec, found, err := w.store.Get(t.Context(), request().Key); err != nil || !found ||
			rec.State != idempotency.Unknown || swept != 2 {
			t.Errorf("%+v, %v, swept %d, %v", rec, found, swept, err)
		}
	})
}
