package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
	"github.com/effectonce/effectonce/outcome"
)

// steps returns a saga of a local row and calls of two providers; the last one may be refused.
func (w *world) steps() []guard.SagaStep {
	undo := func(p *fakeprovider.Provider) func(ctx context.Context, c guard.Call, data []byte) error {
		return func(ctx context.Context, c guard.Call, data []byte) error {
			return p.Undo(ctx, c.Key, string(data))
		}
	}
	return []guard.SagaStep{
		{Name: "payment", Local: true, Do: w.insert, Undo: func(_ context.Context, c guard.Call, _ []byte) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.undone[c.Key] = true
			return nil
		}},
		{Name: "stock", Do: callProvider(&w.mail, "stock"), Undo: undo(&w.mail)},
		{Name: "seat", Key: "seat_of_k1", Do: callProvider(&w.bank, "seat"), Undo: undo(&w.bank)},
		{Name: "charge", Do: callProvider(&w.bank, "charge")}, // the last step needs no Undo
	}
}

func (w *world) book(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	if err := op.Saga(ctx, w.steps()...); err != nil {
		return idempotency.Result{Code: 409, Body: []byte("no")}, err
	}
	seat, _ := op.Data("seat")
	return idempotency.Result{Code: 201, Body: seat}, nil
}

// TestSaga_CrashAtEveryPoint: forward or backward, with lost answers: no step is done twice, and all steps are undone
// once, or none.
func TestSaga_CrashAtEveryPoint(t *testing.T) {
	t.Parallel()
	const refuse, lostAnswer, lostRequest = fakeprovider.Refuse, fakeprovider.LostAnswer, fakeprovider.LostRequest
	for name, faults := range map[string][]fakeprovider.Fault{
		"all steps succeed":             nil,
		"the last step is refused":      {0, refuse},
		"and an undo's answer is lost":  {0, refuse, lostAnswer},
		"and an undo's request is lost": {0, refuse, lostRequest, fakeprovider.Unavailable},
		"a step's answer is lost":       {lostAnswer, refuse},
		"the first call is refused":     {refuse},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			points := 0
			for died := true; died; {
				points++
				synctest.Test(t, func(t *testing.T) { died = sagaCrashAt(t, points, faults) })
			}
			if points < 10 {
				t.Errorf("only %d points", points)
			}
		})
	}
}

func sagaCrashAt(t *testing.T, point int, faults []fakeprovider.Fault) (crashed bool) {
	w := newWorld()
	w.bank.Next(faults...)
	p := &process{Recoverable: w.store, crashAt: point}
	w.setProcess(p)
	crashing, err := guard.New(p, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	crashed = p.run(func() { _, _ = crashing.Run(t.Context(), request(), w.book) })
	w.setProcess(&process{})
	g, err := guard.New(w.store, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var res idempotency.Result
	for err = errDead; err != nil; res, err = g.Run(t.Context(), request(), w.book) {
		w.recoverAll(t, recovery.Handler{Rerun: true, Probe: w.probe, Resume: w.book}, recovery.Config{})
	}
	effects := append(w.bank.Effects(), w.mail.Effects()...)
	for _, e := range effects {
		if undone := e.UndoneBy != ""; undone != (res.Failure != "") {
			t.Errorf("point %d: the answer is %q and %s is undone: %v", point, res.Failure, e.What, undone)
		}
	}
	if res.Failure == "" && len(effects) != 3 || len(effects) > 3 || len(w.payments) != 1 ||
		len(w.undone) > 0 != (res.Failure != "") {
		t.Errorf("point %d: %+v: %v, rows %v, undone %v", point, res, effects, w.payments, w.undone)
	}
	return crashed
}

// TestSaga_RefusedUndoIsStuck at once.
func TestSaga_RefusedUndoIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.bank.Next(fakeprovider.None, fakeprovider.Refuse)
		work := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			steps := w.steps()
			steps[2].Undo = func(context.Context, guard.Call, []byte) error {
				return outcome.Terminal("too_late", errors.New("no refunds"))
			}
			return idempotency.Result{}, op.Saga(ctx, steps...)
		}
		g, err := guard.New(w.store, guard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Run(t.Context(), request(), work); !errors.Is(err, idempotency.ErrUnknown) ||
			!errors.Is(err, guard.ErrStuck) {
			t.Error(err)
		}
		w.recoverAll(t, recovery.Handler{Rerun: true, Probe: w.probe, Resume: work}, recovery.Config{})
		rec, _, err := w.store.Get(t.Context(), request().Key)
		if err != nil || !rec.Stuck || rec.Attempts != 1 || w.mail.Effects()[0].UndoneBy != "" {
			t.Errorf("%+v, %v", rec, err)
		}
	})
}

// TestCompensate_InsteadOfResume: if MayResume returns false, the steps are undone in reverse.
func TestCompensate_InsteadOfResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.bank.Next(fakeprovider.None, fakeprovider.LostAnswer)
		g, err := guard.New(w.store, guard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Run(t.Context(), request(), w.book); !errors.Is(err, idempotency.ErrUnknown) {
			t.Fatal(err)
		}
		steps := w.steps()
		steps[3].Undo = func(ctx context.Context, c guard.Call, data []byte) error {
			return w.bank.Undo(ctx, c.Key, string(data))
		}
		var order []string
		for i, s := range steps {
			undo := s.Undo
			steps[i].Undo = func(ctx context.Context, c guard.Call, data []byte) error {
				order = append(order, s.Name)
				return undo(ctx, c, data)
			}
		}
		w.recoverAll(t, recovery.Handler{
			Probe: w.probe, Resume: w.book, MayResume: func(store.Record) bool { return false },
			Compensate: func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
				return idempotency.Result{Code: 410}, op.Compensate(ctx, steps...)
			},
		}, recovery.Config{})
		res, err := g.Run(t.Context(), request(), w.book)
		if err != nil || res.Failure != guard.CodeCompensated || res.Code != 410 ||
			fmt.Sprint(order) != "[charge seat stock payment]" {
			t.Errorf("%+v, %v, undone in the order %v", res, err, order)
		}
		for _, e := range append(w.bank.Effects(), w.mail.Effects()...) {
			if e.UndoneBy == "" {
				t.Errorf("%s is still there", e.What)
			}
		}
	})
}

// TestCompensate_IsNeverReversed: after a crash during a compensation, a worker that would resume continues the
// compensation, and undoes nothing twice.
func TestCompensate_IsNeverReversed(t *testing.T) {
	t.Parallel()
	points := 0
	for died := true; died; {
		points++
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.bank.Next(fakeprovider.None, fakeprovider.LostRequest)
			g, err := guard.New(w.store, guard.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Run(t.Context(), request(), w.book); !errors.Is(err, idempotency.ErrUnknown) {
				t.Fatal(err)
			}
			advance(recoverDelay)
			began := false
			compensate := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
				steps := w.steps()
				steps[3].Undo = func(context.Context, guard.Call, []byte) error { began = true; return nil }
				for i, s := range steps[:3] {
					steps[i].Undo = func(ctx context.Context, c guard.Call, data []byte) error {
						began = true
						return s.Undo(ctx, c, data)
					}
				}
				return idempotency.Result{Code: 410}, op.Compensate(ctx, steps...)
			}
			p := &process{Recoverable: w.store, crashAt: points}
			w.setProcess(p)
			died = recoverOnce(t, p, recovery.Handler{Rerun: true, Probe: w.probe, Compensate: compensate})
			w.setProcess(&process{})
			calls := w.bank.Calls() + w.mail.Calls()
			w.recoverAll(t, recovery.Handler{Rerun: true, Probe: w.probe, Resume: w.book}, recovery.Config{})
			res, err := g.Run(t.Context(), request(), w.book)
			if err != nil || began && res.Failure == "" {
				t.Errorf("point %d: undone %v, and the answer is %+v, %v", points, began, res, err)
			}
			if !died && w.bank.Calls()+w.mail.Calls() != calls {
				t.Errorf("providers were called again")
			}
		})
	}
	if points < 8 {
		t.Errorf("only %d points", points)
	}
}

// TestSaga_UndoneStepsAreNotUndoneAgain: a later attempt does not call the Undo of a step that is recorded as undone.
func TestSaga_UndoneStepsAreNotUndoneAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.bank.Next(fakeprovider.None, fakeprovider.Refuse) // for the seat, and for the charge
		undone, unavailable := map[string]int{}, true
		work := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			steps := w.steps()
			for i, s := range steps[:3] {
				steps[i].Undo = func(ctx context.Context, c guard.Call, data []byte) error {
					undone[s.Name]++
					if s.Name == "stock" && unavailable {
						return errors.New("no route")
					}
					return s.Undo(ctx, c, data)
				}
			}
			return idempotency.Result{}, op.Saga(ctx, steps...)
		}
		g, err := guard.New(w.store, guard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Run(t.Context(), request(), work); !errors.Is(err, idempotency.ErrUnknown) {
			t.Error(err)
		}
		unavailable = false
		w.recoverAll(t, recovery.Handler{Rerun: true, Probe: w.probe, Resume: work}, recovery.Config{})
		if fmt.Sprint(undone) != "map[payment:1 seat:1 stock:2]" {
			t.Errorf("%v", undone)
		}
	})
}
