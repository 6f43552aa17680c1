package guard_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
	"github.com/effectonce/effectonce/outcome"
)

// charge returns a step that calls the provider, and marks its errors.
func charge(p *fakeprovider.Provider, what string) func(ctx context.Context, c guard.Call) ([]byte, error) {
	return func(ctx context.Context, c guard.Call) ([]byte, error) {
		id, err := p.Do(ctx, c.Key, what)
		return []byte(id), classify(err)
	}
}

func classify(err error) error {
	switch {
	case errors.Is(err, fakeprovider.ErrRefused):
		return outcome.Terminal("card_declined", err)
	case errors.Is(err, fakeprovider.ErrUnavailable):
		return outcome.Retryable(err)
	}
	return err // a timeout: the outcome is unknown
}

// payOnce returns work with one local phase and one provider.
func payOnce(p *fakeprovider.Provider) func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	return func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		id, err := op.Local(ctx, "payment", func(context.Context, guard.Call) ([]byte, error) {
			return []byte("p1"),
				nil
		})
		if err != nil {
			return idempotency.Result{}, err
		}
		card, err := op.CallAs(ctx, "charge", "provider_payment_"+string(id), charge(p, "charge"))
		if err != nil {
			return idempotency.Result{Code: 402}, err
		}
		return idempotency.Result{Code: 201, Resource: string(id), Body: card}, nil
	}
}

// TestRun_ProviderAnswers: the key's state for each answer.
func TestRun_ProviderAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault   fakeprovider.Fault
		state   idempotency.State
		stage   idempotency.Stage
		step    store.StepState
		effects int
	}{
		"yes": {fakeprovider.None, idempotency.Completed, idempotency.ProviderConfirmed, store.StepDone, 1},
		"no": {
			fakeprovider.Refuse, idempotency.FailedReplayable, idempotency.ProviderConfirmed,
			store.StepFailed, 0,
		},
		"not now": {fakeprovider.Unavailable, idempotency.Unknown, idempotency.LocalCreated, "", 0},
		"lost request": {
			fakeprovider.LostRequest, idempotency.Unknown, idempotency.ProviderRequestSent,
			store.StepSent, 0,
		},
		"lost response": {
			fakeprovider.LostAnswer, idempotency.Unknown, idempotency.ProviderRequestSent, store.StepSent,
			1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, p := memstore.New(memstore.Config{}), &fakeprovider.Provider{}
			p.Next(c.fault)
			g := newGuard(t, m, guard.Config{})
			res, err := g.Run(t.Context(), request(1), payOnce(p))
			rec, _, getErr := m.Get(t.Context(), request(1).Key)
			if getErr != nil || rec.State != c.state || len(p.Effects()) != c.effects {
				t.Fatalf("state %s, %d effects, %v", rec.State, len(p.Effects()), err)
			}
			switch c.state {
			case idempotency.Completed, idempotency.FailedReplayable:
				again, err2 := g.Run(t.Context(), request(1), payOnce(p))
				if err != nil || err2 != nil || p.Calls() != 1 {
					t.Errorf("%v, %v, %d calls", err, err2, p.Calls())
				}
				requireSame(t, again, res, true)
			}
			if c.fault == fakeprovider.Unavailable {
				if class, _ := outcome.Of(err); !errors.Is(err, fakeprovider.ErrUnavailable) ||
					class != outcome.ClassRetryable {
					t.Error(err)
				}
				if res, err := g.Run(t.Context(), request(1), payOnce(p)); err != nil || res.Code != 201 ||
					len(p.Effects()) != 1 {
					t.Errorf("the retry: %+v, %v", res, err)
				}
				return
			}
			var u *idempotency.UnknownError
			if c.state == idempotency.Unknown && (!errors.As(err, &u) || u.Stage != c.stage) {
				t.Errorf("error %v", err)
			}
			i := slices.IndexFunc(rec.Progress.Steps, func(s store.Step) bool { return s.Name == "charge" })
			if rec.Progress.Stage != c.stage || rec.Progress.Steps[i].State != c.step ||
				rec.Progress.Steps[i].Key != "provider_payment_p1" {
				t.Errorf("progress %+v", rec.Progress)
			}
		})
	}
}

// TestRun_LocalPhaseKeepsTheKey: the phase has committed for this command, so another command must not get the key.
func TestRun_LocalPhaseKeepsTheKey(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"a provider that is busy": func() error { return outcome.Retryable(errors.New("429")) },
		"an error without a mark": func() error { return errors.New("no route") },
		"a panic":                 func() error { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := memstore.New(memstore.Config{})
			g := newGuard(t, m, guard.Config{})
			rows, charged := map[string]byte{}, byte(0)
			run := func(amount byte, charge func() error) (idempotency.Result, error) {
				return g.Run(t.Context(), request(amount), func(ctx context.Context, op *guard.Op) (idempotency.Result,
					error,
				) {
					id, err := op.Local(ctx, "payment", func(_ context.Context, c guard.Call) ([]byte, error) {
						if _, there := rows[c.Key]; !there { // insert ... on conflict do nothing
							rows[c.Key] = amount
						}
						return []byte(c.Key), nil
					})
					if err != nil {
						return idempotency.Result{}, err
					}
					if err := charge(); err != nil {
						return idempotency.Result{}, err
					}
					charged = amount
					return idempotency.Result{Code: 201, Body: id}, nil
				})
			}
			func() {
				defer func() { _ = recover() }()
				if _, err := run(100, fail); err == nil || errors.Is(err, idempotency.ErrUnknown) {
					t.Errorf("the first attempt: %v", err)
				}
			}()
			yes := func() error { return nil }
			if res, err := run(200, yes); !errors.Is(err, idempotency.ErrMismatch) {
				t.Errorf("another command: %+v, %v, charged %d for the rows %v", res, err, charged, rows)
			}
			if res, err := run(100, yes); err != nil || res.Code != 201 || res.Replayed || charged != 100 ||
				len(rows) != 1 {
				t.Errorf("the same command: %+v, %v, charged %d for the rows %v", res, err, charged, rows)
			}
		})
	}
}

// TestRun_ContinuesFromRecoveryPoint: the second provider fails; the next attempt does not call the first one again.
func TestRun_ContinuesFromRecoveryPoint(t *testing.T) {
	t.Parallel()
	m, bank, mail := memstore.New(memstore.Config{}), &fakeprovider.Provider{}, &fakeprovider.Provider{}
	mail.Next(fakeprovider.Unavailable, fakeprovider.LostAnswer)
	g := newGuard(t, m, guard.Config{Rerun: []string{"payment.create"}})
	work := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		card, err := op.Call(ctx, "charge", charge(bank, "charge"))
		if err != nil {
			return idempotency.Result{}, err
		}
		receipt, err := op.Call(ctx, "mail", charge(mail, "mail"))
		return idempotency.Result{Code: 201, Body: slices.Concat(card, []byte(" "), receipt)}, err
	}
	for attempt, want := range []error{fakeprovider.ErrUnavailable, fakeprovider.ErrTimeout, nil} {
		res, err := g.Run(t.Context(), request(1), work)
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
		if err == nil && string(res.Body) != "charge-1 mail-1" {
			t.Errorf("%s", res.Body)
		}
	}
	if bank.Calls() != 1 || mail.Calls() != 3 || len(mail.Effects()) != 1 {
		t.Errorf("the bank was called %d times, mail %d times for %d effects", bank.Calls(), mail.Calls(),
			len(mail.Effects()))
	}
}

// TestRun_NoReleaseAfterCall: no error and no panic releases a key after a provider has been called with effect, and
// before it only one that says that nothing was done.
func TestRun_NoReleaseAfterCall(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, end := range map[string]func() error{
		"retryable": func() error { return outcome.Retryable(boom) },
		"no mark":   func() error { return boom },
		"panic":     func() error { panic(boom) },
	} {
		for _, called := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m, p := memstore.New(memstore.Config{}), &fakeprovider.Provider{}
				g := newGuard(t, m, guard.Config{})
				unknown := called || name != "retryable"
				func() {
					defer func() {
						if got := recover(); (got != nil) != (name == "panic") {
							t.Errorf("recovered %v", got)
						}
					}()
					_, err := g.Run(t.Context(), request(1),
						func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
							if called {
								if _, err := op.Call(ctx, "charge", charge(p, "charge")); err != nil {
									t.Error(err)
								}
							}
							return idempotency.Result{}, end()
						})
					if !errors.Is(err, boom) || errors.Is(err, idempotency.ErrUnknown) != unknown {
						t.Error(err)
					}
				}()
				want := idempotency.State("")
				if unknown {
					want = idempotency.Unknown
				}
				if got := stateOf(t, m, request(1)); got != want {
					t.Errorf("state %q, want %q", got, want)
				}
			})
		}
	}
}

// TestRun_OpenStepIsNoSuccess: a success of work that ignores an unknown outcome is unknown.
func TestRun_OpenStepIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, end := range []error{nil, outcome.Terminal("no", errors.New("no"))} {
		m, p := memstore.New(memstore.Config{}), &fakeprovider.Provider{}
		p.Next(fakeprovider.LostAnswer)
		_, err := newGuard(t, m, guard.Config{}).Run(t.Context(), request(1),
			func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
				_, _ = op.Call(ctx, "charge", charge(p, "charge"))
				return idempotency.Result{Code: 200}, end
			})
		if !errors.Is(err, idempotency.ErrUnknown) || stateOf(t, m, request(1)) != idempotency.Unknown {
			t.Errorf("%v, state %s", err, stateOf(t, m, request(1)))
		}
		if class, _ := outcome.Of(err); class != outcome.ClassUnknown {
			t.Errorf("the caller's error is of class %v", class)
		}
	}
}

// TestRun_NoCallWithoutRecord: if the step cannot be recorded, the provider is not called.
func TestRun_NoCallWithoutRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, p := newFaulty(memstore.New(memstore.Config{})), &fakeprovider.Provider{}
		f.before = func(call string) error {
			if call == "save" {
				return errAway
			}
			return nil
		}
		_, err := newGuard(t, f, guard.Config{}).Run(t.Context(), request(1),
			func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
				_, err := op.Call(ctx, "charge", charge(p, "charge"))
				return idempotency.Result{}, err
			})
		if !errors.Is(err, errAway) || p.Calls() != 0 || stateOf(t, f, request(1)) != "" {
			t.Errorf("%v, %d calls, state %q", err, p.Calls(), stateOf(t, f, request(1)))
		}
	})
}

// TestRun_CallerLeaves: the provider's answer is recorded after the caller has left.
func TestRun_CallerLeaves(t *testing.T) {
	t.Parallel()
	m := memstore.New(memstore.Config{})
	p := &fakeprovider.Provider{}
	ctx, cancel := context.WithCancel(t.Context())
	p.At = func(when string) {
		if when == "answered" {
			cancel()
		}
	}
	res, err := newGuard(t, m, guard.Config{}).Run(ctx, request(1), payOnce(p))
	if err != nil || res.Code != 201 || stateOf(t, m, request(1)) != idempotency.Completed {
		t.Errorf("%+v, %v, state %s", res, err, stateOf(t, m, request(1)))
	}
}

// TestRun_LostOwnerSendsNothing: an owner that lost its key cannot begin a step.
func TestRun_LostOwnerSendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, p := memstore.New(memstore.Config{}), &fakeprovider.Provider{}
		cfg := guard.Config{Lease: time.Second, Heartbeat: -1, Rerun: []string{"payment.create"}}
		zombie, next := newGuard(t, m, cfg), newGuard(t, m, cfg)
		res, err := zombie.Run(t.Context(), request(1), func(ctx context.Context, op *guard.Op) (idempotency.Result,
			error,
		) {
			advance(2 * time.Second)
			if _, err := next.Run(t.Context(), request(1), payOnce(p)); err != nil {
				t.Error(err)
			}
			// As if the process had stood still and not noticed its lease's end.
			_, err := op.Call(context.WithoutCancel(ctx), "charge", charge(p, "charge"))
			if !errors.Is(err, store.ErrLeaseLost) {
				t.Errorf("the step: %v", err)
			}
			return idempotency.Result{}, err
		})
		if err != nil || res.Code != 201 || !res.Replayed || p.Calls() != 1 {
			t.Errorf("%+v, %v, %d calls", res, err, p.Calls())
		}
	})
}

// TestResume_LostOwnerSendsNothing: it does not repeat a call, or the undo of one, either.
func TestResume_LostOwnerSendsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state store.StepState
		step  func(ctx context.Context, op *guard.Op, sent func()) error
	}{
		"a call": {store.StepSent, func(ctx context.Context, op *guard.Op, sent func()) error {
			_, err := op.Call(ctx, "charge", func(context.Context, guard.Call) ([]byte, error) {
				sent()
				return nil, nil
			})
			return err
		}},
		"an undo": {store.StepUndoing, func(ctx context.Context, op *guard.Op, sent func()) error {
			return op.Compensate(ctx, guard.SagaStep{
				Name: "charge",
				Undo: func(context.Context, guard.Call, []byte) error { sent(); return nil },
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := memstore.New(memstore.Config{})
				claim := func(token string) store.ClaimResult {
					advance(2 * time.Second)
					got, err := m.Claim(t.Context(), request(1), store.ClaimOptions{
						Token: token, Lease: time.Second, Rerun: true,
					})
					if err != nil || !got.Won {
						t.Fatalf("%+v, %v", got, err)
					}
					return got
				}
				first := claim("first")
				if err := m.Save(t.Context(), first.Lease, store.Progress{
					Steps: []store.Step{{Name: "charge", State: c.state, Key: "k"}},
				}); err != nil {
					t.Fatal(err)
				}
				lost, _ := claim("lost"), claim("next")
				sent := 0
				_, err := newGuard(t, m, guard.Config{}).Resume(t.Context(), lost,
					func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
						return idempotency.Result{}, c.step(ctx, op, func() { sent++ })
					})
				if !errors.Is(err, store.ErrLeaseLost) || sent != 0 {
					t.Errorf("%v, sent %d times", err, sent)
				}
			})
		})
	}
}

// TestLateAnswer: nothing is sent when the answer to its record comes after the lease, which another owner may have.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]func(ctx context.Context, op *guard.Op, late, sent func()) error{
		"a call": func(ctx context.Context, op *guard.Op, late, sent func()) error {
			late()
			_, err := op.Call(ctx, "charge", func(context.Context, guard.Call) ([]byte, error) {
				sent()
				return nil, nil
			})
			return err
		},
		"an undo": func(ctx context.Context, op *guard.Op, late, sent func()) error {
			done := func(context.Context, guard.Call) ([]byte, error) { return nil, nil }
			if _, err := op.Call(ctx, "charge", done); err != nil {
				return err
			}
			late()
			return op.Compensate(ctx, guard.SagaStep{
				Name: "charge",
				Undo: func(context.Context, guard.Call, []byte) error { sent(); return nil },
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, isLate, sent := newFaulty(memstore.New(memstore.Config{})), false, 0
				f.after = func(call string) error {
					if call == "save" && isLate {
						advance(2 * time.Second)
					}
					return nil
				}
				g := newGuard(t, f, guard.Config{Lease: time.Second, Heartbeat: -1})
				_, err := g.Run(t.Context(), request(1),
					func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
						return idempotency.Result{}, step(ctx, op, func() { isLate = true }, func() { sent++ })
					})
				if !errors.Is(err, store.ErrLeaseLost) || sent != 0 {
					t.Errorf("%v, sent %d times", err, sent)
				}
			})
		})
	}
}

func TestRun_NamesAreUsedOnce(t *testing.T) {
	t.Parallel()
	p := &fakeprovider.Provider{}
	_, err := newGuard(t, memstore.New(memstore.Config{}), guard.Config{}).Run(t.Context(), request(1),
		func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			for range 2 {
				if _, err := op.Call(ctx, "charge", charge(p, "charge")); err != nil {
					return idempotency.Result{}, err
				}
			}
			return idempotency.Result{}, nil
		})
	if err == nil || p.Calls() != 1 {
		t.Errorf("%v, %d calls", err, p.Calls())
	}
}

func TestStepKey(t *testing.T) {
	t.Parallel()
	k := request(1).Key
	seen := map[string]bool{k.Value: true}
	for _, k := range []idempotency.Key{
		k,
		{Tenant: "u", Operation: k.Operation, Value: k.Value},
		{Tenant: k.Tenant, Operation: "o", Value: k.Value},
		{Tenant: "tp", Operation: "ayment.create", Value: k.Value},
	} {
		for _, step := range []string{"charge", "mail"} {
			if got := guard.StepKey(k, step); seen[got] || got != guard.StepKey(k, step) {
				t.Errorf("%s of %v is not its own", got, k)
			} else {
				seen[got] = true
			}
		}
	}
	// Pinned: another derivation would call providers a second time for operations that are under way in a deployment.
	if got := guard.StepKey(k, "charge"); got != "ebbd952b-521a-8b81-bdf1-da0f9289a2fe" {
		t.Errorf("StepKey is %s", got)
	}
}

func TestStageOf(t *testing.T) {
	t.Parallel()
	local, sent := store.Step{State: store.StepDone}, store.Step{State: store.StepSent, Key: "k"}
	done, undoing := store.Step{State: store.StepDone, Key: "k"}, store.Step{State: store.StepUndoing}
	for want, steps := range map[idempotency.Stage][][]store.Step{
		idempotency.Received:            {nil},
		idempotency.LocalCreated:        {{local}, {local, local}},
		idempotency.ProviderRequestSent: {{sent}, {local, sent}, {done, sent}, {undoing, done}},
		idempotency.ProviderConfirmed:   {{done}, {done, local}, {local, done}},
	} {
		for _, s := range steps {
			if got := store.StageOf(s); got != want {
				t.Errorf("%v is %s, want %s", s, got, want)
			}
		}
	}
}

// TestRun_RetryableOfRetriedCall: a retryable error of a retried call does not settle the first call, whose reply was
// lost.
func TestRun_RetryableOfRetriedCall(t *testing.T) {
	t.Parallel()
	m, p := memstore.New(memstore.Config{}), &fakeprovider.Provider{}
	p.Next(fakeprovider.LostAnswer, fakeprovider.Unavailable)
	g := newGuard(t, m, guard.Config{Rerun: []string{"payment.create"}})
	for range 2 {
		if _, err := g.Run(t.Context(), request(1), payOnce(p)); !errors.Is(err, idempotency.ErrUnknown) {
			t.Error(err)
		}
	}
	rec, _, err := m.Get(t.Context(), request(1).Key)
	if err != nil || rec.State != idempotency.Unknown || rec.Progress.Steps[1].State != store.StepSent {
		t.Errorf("%+v, %v", rec, err)
	}
}
