package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// TestRerun_FailureAfterTakeOverKeepsTheKey: the earlier owner may have committed, so another command must not get
// the key.
func TestRerun_FailureAfterTakeOverKeepsTheKey(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(){"an error": func() {}, "a panic": func() { panic("no luck") }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := memstore.New(memstore.Config{})
				if _, err := m.Claim(t.Context(), request(1), store.ClaimOptions{
					Token: "commits, and vanishes",
					Lease: time.Second,
				}); err != nil {
					t.Fatal(err)
				}
				advance(2 * time.Second)
				g := newGuard(t, m, guard.Config{Rerun: []string{"payment.create"}})
				func() {
					defer func() { _ = recover() }()
					_, err := g.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
						fail()
						return idempotency.Result{}, outcome.Retryable(errors.New("a deadlock"))
					})
					if !errors.Is(err, idempotency.ErrUnknown) {
						t.Errorf("who took it over is told %v", err)
					}
				}()
				if _, err := g.Do(t.Context(), request(2), created); !errors.Is(err, idempotency.ErrMismatch) {
					t.Errorf("another command: %v", err)
				}
				// The same one goes on at once: nothing is burned.
				if res, err := g.Do(t.Context(), request(1), created); err != nil || res.Replayed {
					t.Errorf("the same command: %+v, %v", res, err)
				}
			})
		})
	}
}

// TestClaim_UndoneAfterCallerLeft: a caller that leaves during its claim leaves no key in progress: nothing was run,
// and a retry runs.
func TestClaim_UndoneAfterCallerLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a pause of the guard is over only when it knows who has left
		f := newFaulty(memstore.New(memstore.Config{}))
		ctx, leave := context.WithCancel(t.Context())
		f.after = func(call string) error {
			if call == "claim" && f.count("claim") == 1 {
				leave()
				return errAway
			}
			return nil
		}
		g := newGuard(t, f, guard.Config{})
		_, err := g.Do(ctx, request(1), func(context.Context) (idempotency.Result, error) {
			t.Error("it ran")
			return idempotency.Result{}, nil
		})
		if class, _ := outcome.Of(err); class != outcome.ClassRetryable {
			t.Errorf("who left is told %v", err)
		}
		if got := stateOf(t, f, request(1)); got != "" {
			t.Errorf("the key is %s", got)
		}
		if res, err := g.Do(t.Context(), request(2), created); err != nil || res.Replayed {
			t.Errorf("the next one: %+v, %v", res, err)
		}
	})
}

// TestClaim_UndoKeepsLocalPhase: likewise of a key with a recorded local phase, from which the retry continues.
func TestClaim_UndoKeepsLocalPhase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(memstore.New(memstore.Config{}))
		g := newGuard(t, f, guard.Config{})
		if _, err := g.Run(t.Context(), request(1), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			_, err := op.Local(ctx, "payment", func(context.Context, guard.Call) ([]byte, error) { return nil, nil })
			return idempotency.Result{}, errors.Join(err, errAway)
		}); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		before := f.count("claim")
		f.after = func(call string) error {
			if call == "claim" && f.count("claim") == before+1 {
				leave()
				return errAway
			}
			return nil
		}
		if _, err := g.Do(ctx, request(1), created); err == nil {
			t.Error("who left is told yes")
		}
		if _, err := g.Do(t.Context(), request(2), created); !errors.Is(err, idempotency.ErrMismatch) {
			t.Errorf("another command: %v", err)
		}
		if res, err := g.Do(t.Context(), request(1), created); err != nil || res.Replayed {
			t.Errorf("the same one: %+v, %v", res, err)
		}
	})
}

// TestClaim_UndoneTakeOverIsUnknown: the earlier owner's outcome is still unknown.
func TestClaim_UndoneTakeOverIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a pause of the guard is over only when it knows who has left
		f := newFaulty(memstore.New(memstore.Config{}))
		ctx, leave := context.WithCancel(t.Context())
		g := newGuard(t, f, guard.Config{Rerun: []string{"payment.create"}})
		if _, err := g.Do(ctx, request(1), func(context.Context) (idempotency.Result, error) {
			return idempotency.Result{}, outcome.Unknown(errors.New("no answer"))
		}); !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
		before := f.count("claim")
		f.after = func(call string) error {
			if call == "claim" && f.count("claim") == before+2 { // the first finds it, the second takes it
				leave()
				return errAway
			}
			return nil
		}
		if _, err := g.Do(ctx, request(1), created); err == nil {
			t.Error("it ran")
		}
		if rec, _, err := f.Get(t.Context(), request(1).Key); err != nil || rec.State != idempotency.Unknown ||
			rec.LeaseLeft > 0 {
			t.Errorf("%+v, %v", rec, err)
		}
	})
}

// TestClaim_StoreUnavailable: nothing was run, and the caller may retry.
func TestClaim_StoreUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(memstore.New(memstore.Config{}))
		f.before = func(string) error { return errAway }
		_, err := newGuard(t, f, guard.Config{}).Do(t.Context(), request(1), created)
		if class, _ := outcome.Of(err); class != outcome.ClassRetryable || !errors.Is(err, errAway) {
			t.Errorf("%v", err)
		}
	})
}

// makeStuck makes the key stuck, and returns its last lease.
func makeStuck(t *testing.T, m *memstore.Store) store.Lease {
	t.Helper()
	c, err := m.Claim(t.Context(), request(1), store.ClaimOptions{Token: "t", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.MarkUnknown(t.Context(), c.Lease, "", 0); err != nil {
		t.Fatal(err)
	}
	taken, err := m.Recover(t.Context(), store.RecoverOptions{Limit: 1, Lease: time.Minute, Token: "r"})
	if err != nil || len(taken) != 1 {
		t.Fatal(taken, err)
	}
	if err := m.Postpone(t.Context(), taken[0].Lease, "", 0, true); err != nil {
		t.Fatal(err)
	}
	return taken[0].Lease
}

// TestClaimStuck_Released: another person releases the key between ClaimStuck's read and its claim, which leaves no new
// record.
func TestClaimStuck_Released(t *testing.T) {
	t.Parallel()
	f := newFaulty(memstore.New(memstore.Config{}))
	stuck := makeStuck(t, f.Store)
	f.before = func(call string) error {
		if call != "claim" {
			return nil
		}
		return f.Store.Release(t.Context(), stuck)
	}
	if got, err := store.ClaimStuck(t.Context(), f, request(1).Key, time.Minute); !errors.Is(err, store.ErrNotStuck) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := stateOf(t, f, request(1)); got != "" {
		t.Errorf("the key is %s", got)
	}
}

// TestClaimStuck_ReleasedAndUsed: between ClaimStuck's read and its claim the key is released and used by a caller that
// crashes. That one's outcome is unknown, so the key is not released.
func TestClaimStuck_ReleasedAndUsed(t *testing.T) {
	t.Parallel()
	f := newFaulty(memstore.New(memstore.Config{}))
	stuck := makeStuck(t, f.Store)
	f.before = func(call string) error {
		if call != "claim" {
			return nil
		}
		if err := f.Store.Release(t.Context(), stuck); err != nil {
			return err
		}
		c, err := f.Store.Claim(t.Context(), request(1), store.ClaimOptions{Token: "another", Lease: time.Minute})
		return errors.Join(err, f.Store.MarkUnknown(t.Context(), c.Lease, "the process vanished", 0))
	}
	if got, err := store.ClaimStuck(t.Context(), f, request(1).Key, time.Minute); !errors.Is(err, store.ErrNotStuck) {
		t.Errorf("%+v, %v", got, err)
	}
	rec, _, err := f.Get(t.Context(), request(1).Key)
	if err != nil || rec.State != idempotency.Unknown || rec.Reason != "the process vanished" || rec.LeaseLeft > 0 {
		t.Errorf("%+v, %v", rec, err)
	}
}

// TestClaim_LateTakeOver: a claim with Rerun is executed late, while its caller waits for another owner. The caller
// does not mistake it for its own claim, and so does not release the key after a failure.
func TestClaim_LateTakeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		vanished := claimed(t, m, "vanished", time.Second)
		var other store.Lease
		f := newFaulty(m)
		f.before = func(call string) error {
			if call != "claim" || f.count("claim") != 2 {
				return nil
			}
			// The second one, with Rerun, gets lost, and somebody else is faster; below it arrives, when that one gives
			// up.
			other = claimed(t, m, "other", time.Minute)
			return errAway
		}
		var late store.ClaimOptions
		f.claims = func(opt store.ClaimOptions) {
			if opt.Rerun {
				late = opt
			}
		}
		advance(2 * time.Second)
		g := newGuard(t, f, guard.Config{Wait: time.Minute, Rerun: []string{request(1).Key.Operation}})
		go func() {
			advance(5 * time.Second)
			if err := m.MarkUnknown(t.Context(), other, "gave up", time.Hour); err != nil {
				t.Error(err)
			}
			if c, err := m.Claim(t.Context(), request(1), late); err != nil || !c.Won {
				t.Errorf("%+v, %v", c, err)
			}
		}()
		_, err := g.Do(t.Context(), request(1), func(context.Context) (idempotency.Result, error) {
			return idempotency.Result{}, outcome.Retryable(errors.New("busy"))
		})
		if err == nil || stateOf(t, m, request(1)) == "" {
			t.Errorf("%v; fence %d was given up without knowing what it did", err, vanished.Fence)
		}
	})
}

// claimed claims the key for another owner after the end of its lease.
func claimed(t *testing.T, m *memstore.Store, token string, lease time.Duration) store.Lease {
	t.Helper()
	c, err := m.Claim(t.Context(), request(1), store.ClaimOptions{Token: token, Lease: lease, Rerun: true})
	if err != nil || !c.Won {
		t.Fatalf("%+v, %v", c, err)
	}
	return c.Lease
}
