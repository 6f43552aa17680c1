package guard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// TestDo_Waits: a caller of another process waits for the result, up to Wait.
func TestDo_Waits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		owner := newGuard(t, m, guard.Config{})
		patient, hasty := newGuard(t, m, guard.Config{Wait: time.Minute}),
			newGuard(t, m, guard.Config{Wait: time.Second})
		go func() {
			_, _ = owner.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
				advance(40 * time.Second)
				return created(ctx)
			})
		}()
		synctest.Wait()
		began := time.Now()
		_, err := hasty.Do(t.Context(), request(1), created)
		var in *idempotency.InProgressError
		if !errors.As(err, &in) || time.Since(began) < time.Second || in.RetryAfter <= 0 || in.Age < time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		res, err := patient.Do(t.Context(), request(1), created)
		if err != nil || !res.Replayed || time.Since(began) < 39*time.Second {
			t.Errorf("%+v, %v after %v", res, err, time.Since(began))
		}
	})
}

// TestDo_WaiterClaimsReleasedKey: a caller that waits for an attempt that certainly failed does the work itself.
func TestDo_WaiterClaimsReleasedKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		owner, other := newGuard(t, m, guard.Config{}), newGuard(t, m, guard.Config{Wait: time.Minute})
		go func() {
			_, _ = owner.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
				advance(3 * time.Second)
				return idempotency.Result{}, outcome.Retryable(errors.New("deadlock"))
			})
		}()
		synctest.Wait()
		if res, err := other.Do(t.Context(), request(1), created); err != nil || res.Replayed {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// TestHeartbeat_ExtendsTheLease: work may take many leases.
func TestHeartbeat_ExtendsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		g, other := newGuard(t, m, guard.Config{Lease: time.Second}), newGuard(t, m, guard.Config{})
		res, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
			for range 20 {
				advance(900 * time.Millisecond)
				if _, err := other.Do(ctx, request(1), created); !errors.Is(err, idempotency.ErrInProgress) {
					t.Errorf("another caller is told %v", err)
				}
			}
			return created(ctx)
		})
		if err != nil || res.Code != 201 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// TestLease_EndCancelsTheWork: the work of an owner that cannot reach the store until its lease ends is cancelled.
func TestLease_EndCancelsTheWork(t *testing.T) {
	t.Parallel()
	for name, extend := range map[string]time.Duration{"store away": 0, "no heartbeat": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, lost := newFaulty(memstore.New(memstore.Config{})), 0
				f.before = func(call string) error {
					if call == "extend" {
						return errAway
					}
					return nil
				}
				g := newGuard(t, f, guard.Config{
					Lease: time.Second, Heartbeat: extend,
					Observer: idempotency.Observer{LeaseLost: func(idempotency.LeaseLostInfo) { lost++ }},
				})
				began := time.Now()
				_, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), store.ErrLeaseLost) || time.Since(began) != time.Second {
						t.Errorf("%v after %v", context.Cause(ctx), time.Since(began))
					}
					return idempotency.Result{}, ctx.Err()
				})
				if !errors.Is(err, idempotency.ErrUnknown) || lost != 1 ||
					stateOf(t, f, request(1)) != idempotency.Unknown {
					t.Errorf("%v, observed %d, state %s", err, lost, stateOf(t, f, request(1)))
				}
			})
		})
	}
}

// TestHeartbeat_RetriesFailure: a failed extension is repeated in time.
func TestHeartbeat_RetriesFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, began := newFaulty(memstore.New(memstore.Config{})), time.Now()
		f.before = func(call string) error {
			if at := time.Since(began); call == "extend" && at > time.Second && at < 2900*time.Millisecond {
				return errAway
			}
			return nil
		}
		g := newGuard(t, f, guard.Config{Lease: 3 * time.Second})
		if _, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
			advance(10 * time.Second)
			return idempotency.Result{}, ctx.Err()
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestFence_LateWriteIsRefused: an owner that was paused for longer than its lease returns another one's result to its
// caller.
func TestFence_LateWriteIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		f := newFaulty(m)
		f.before = func(call string) error {
			if call == "extend" {
				return errAway
			}
			return nil
		}
		cfg := guard.Config{Lease: time.Second, Rerun: []string{"payment.create"}}
		zombie, next := newGuard(t, f, cfg), newGuard(t, m, cfg)
		res, err := zombie.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
			advance(2 * time.Second)
			if res, err := next.Do(t.Context(), request(1), created); err != nil || res.Replayed {
				t.Errorf("the next owner: %+v, %v", res, err)
			}
			return idempotency.Result{Code: 201, Body: []byte("late")}, nil
		})
		if err != nil || string(res.Body) != "one" || !res.Replayed {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// TestPeer_PowertoolsPy8049_NoBlindRerun: the end of a lease does not release a key. The work may have happened.
func TestPeer_PowertoolsPy8049_NoBlindRerun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		if _, err := m.Claim(t.Context(), request(1), store.ClaimOptions{
			Token: "crashed and gone, 128 bits",
			Lease: time.Minute,
		}); err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, m, guard.Config{Wait: 2 * time.Minute})
		_, err := g.Do(t.Context(), request(1), created)
		if !errors.Is(err, idempotency.ErrUnknown) {
			t.Errorf("after the lease: %v", err)
		}
	})
}

// TestPeer_GoRedis2985_LostReplyOfClaim: the same claim sent again is won.
func TestPeer_GoRedis2985_LostReplyOfClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(memstore.New(memstore.Config{}))
		f.after = func(call string) error {
			if call == "claim" && f.count("claim") < 3 {
				return errAway
			}
			return nil
		}
		if res, err := newGuard(t, f, guard.Config{}).Do(t.Context(), request(1), created); err != nil || res.Replayed {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// TestLease_BeginsWithTheLastClaim: a slow reply to the first claim does not shorten the lease.
func TestLease_BeginsWithTheLastClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(memstore.New(memstore.Config{}))
		f.after = func(call string) error {
			if call == "claim" && f.count("claim") == 1 {
				advance(1500 * time.Millisecond)
				return errAway
			}
			return nil
		}
		g := newGuard(t, f, guard.Config{Lease: time.Second})
		if _, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
			advance(5 * time.Second)
			return idempotency.Result{}, context.Cause(ctx)
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestFinish_UnknownOutcome: it is sent again; if its outcome is still unknown, the result is returned with
// ErrUnrecorded.
func TestFinish_UnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		until int
		want  error
	}{"for a while": {4, nil}, "for ever": {1 << 30, guard.ErrUnrecorded}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFaulty(memstore.New(memstore.Config{}))
				f.after = func(call string) error {
					if call == "finish" && f.count("finish") < c.until {
						return errAway
					}
					return nil
				}
				res, err := newGuard(t, f, guard.Config{}).Do(t.Context(), request(1), created)
				if res.Code != 201 || !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("%+v, %v", res, err)
				}
				if f.count("finish") < 4 {
					t.Errorf("sent %d times", f.count("finish"))
				}
			})
		})
	}
}

// TestFinish_UnrecordedRefusal: it is unknown, because the next attempt may succeed.
func TestFinish_UnrecordedRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(memstore.New(memstore.Config{}))
		away := true
		f.before = func(call string) error {
			if call == "finish" && away {
				return errAway
			}
			return nil
		}
		var told []idempotency.UnknownInfo
		g := newGuard(t, f, guard.Config{
			Rerun:    []string{request(1).Key.Operation},
			Observer: idempotency.Observer{Unknown: func(i idempotency.UnknownInfo) { told = append(told, i) }},
		})
		refuse := func(context.Context) (idempotency.Result, error) {
			return idempotency.Result{Code: 402}, outcome.Terminal("card_declined", errors.New("no"))
		}
		res, err := g.Do(t.Context(), request(1), refuse)
		var unknown *idempotency.UnknownError
		if !errors.As(err, &unknown) || errors.Is(err, guard.ErrUnrecorded) || res.Code != 0 || res.Failure != "" ||
			len(told) != 1 {
			t.Errorf("%+v, %v; the observer %d times", res, err, len(told))
		}
		away = false
		advance(time.Hour)
		if res, err := g.Do(t.Context(), request(1), created); err != nil || res.Code != 201 {
			t.Errorf("the next attempt: %+v, %v", res, err)
		}
	})
}

// TestShared_CallersLeave: the work continues until the last caller of this process has left, also after the leader.
func TestShared_CallersLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		g := newGuard(t, m, guard.Config{Wait: time.Minute, Finish: -1})
		lead, leaveLead := context.WithCancel(t.Context())
		second, leaveSecond := context.WithCancel(t.Context())
		var ended atomic.Bool
		work := func(ctx context.Context) (idempotency.Result, error) {
			select {
			case <-ctx.Done():
				ended.Store(true)
				return idempotency.Result{}, context.Cause(ctx)
			case <-time.After(10 * time.Second):
				return created(ctx)
			}
		}
		var errs [2]error
		go func() { _, errs[0] = g.Do(lead, request(1), work) }()
		synctest.Wait()
		go func() { _, errs[1] = g.Do(second, request(1), work) }()
		synctest.Wait()
		leaveLead()
		synctest.Wait()
		if ended.Load() || errs[0] != nil {
			t.Errorf("the work ended with the first caller: %v", errs[0])
		}
		leaveSecond()
		synctest.Wait()
		if !ended.Load() || !errors.Is(errs[1], context.Canceled) || !errors.Is(errs[0], idempotency.ErrUnknown) {
			t.Errorf("ended %v; %v; %v", ended.Load(), errs[0], errs[1])
		}
		if got := stateOf(t, m, request(1)); got != idempotency.Unknown { // cut at a moment that nobody knows
			t.Errorf("state %s", got)
		}
	})
}

// TestFinish: a caller that hangs up leaves a result, and no outcome that is unknown; work without end is cut.
func TestFinish(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]idempotency.State{
		5 * time.Second:  idempotency.Completed,
		20 * time.Second: idempotency.Unknown,
	} {
		synctest.Test(t, func(t *testing.T) {
			m := memstore.New(memstore.Config{})
			g := newGuard(t, m, guard.Config{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = g.Do(ctx, request(1), func(ctx context.Context) (idempotency.Result, error) {
				select {
				case <-ctx.Done():
					return idempotency.Result{}, context.Cause(ctx)
				case <-time.After(took):
					return created(ctx)
				}
			})
			if got := stateOf(t, m, request(1)); got != want {
				t.Errorf("work of %v, whose caller left after a second, is %s: want %s", took, got, want)
			}
		})
	}
}

// TestPerTenant: a tenant's keys in progress do not limit other tenants.
func TestPerTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		g := newGuard(t, m, guard.Config{PerTenant: 2})
		of := func(tenant, key string) idempotency.Request {
			r := request(1)
			r.Key.Tenant, r.Key.Value = tenant, key
			return r
		}
		release := make(chan struct{})
		for _, key := range []string{"1", "2"} {
			go func() {
				_, _ = g.Do(t.Context(), of("a", key), func(ctx context.Context) (idempotency.Result, error) {
					<-release
					return created(ctx)
				})
			}()
		}
		synctest.Wait()
		_, err := g.Do(t.Context(), of("a", "3"), created)
		if class, _ := outcome.Of(err); class != outcome.ClassRetryable ||
			stateOf(t, m, of("a", "3")) != "" {
			t.Errorf("a third key: %v, %s", err, stateOf(t, m, of("a", "3")))
		}
		if _, err := g.Do(t.Context(), of("b", "1"), created); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		close(release)
		synctest.Wait()
		if _, err := g.Do(t.Context(), of("a", "3"), created); err != nil {
			t.Errorf("the third key afterwards: %v", err)
		}
	})
}

// TestShared_FollowerLeaves: the other callers are not affected.
func TestShared_FollowerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Config{}), guard.Config{Wait: time.Minute})
		done := make(chan error, 1)
		go func() {
			_, err := g.Do(t.Context(), request(1), func(ctx context.Context) (idempotency.Result, error) {
				advance(10 * time.Second)
				return idempotency.Result{}, ctx.Err()
			})
			done <- err
		}()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.Do(short, request(1), created); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	m := memstore.New(memstore.Config{})
	for name, c := range map[string]guard.Config{
		"a lease of nothing": {Lease: time.Millisecond}, "a negative lease": {Lease: -1},
		"a late heartbeat": {Lease: time.Second, Heartbeat: 600 * time.Millisecond}, "a negative wait": {Wait: -1},
	} {
		if _, err := guard.New(m, c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := guard.New(nil, guard.Config{}); err == nil {
		t.Error("no store is accepted")
	}
	g := newGuard(t, m, guard.Config{})
	if _, err := g.Do(t.Context(), idempotency.Request{}, created); !errors.Is(err, idempotency.ErrInvalidKey) {
		t.Errorf("no key: %v", err)
	}
}
