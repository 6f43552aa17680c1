package recovery_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
)

// TestRecovery_CrashAtEveryPoint: a process crashes before and after each write of the store and each call of a
// provider, with each answer of the provider. Then there is one effect of each, or none after a refusal, and all
// callers get the same answer.
func TestRecovery_CrashAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, bank := range []fakeprovider.Fault{
		fakeprovider.None, fakeprovider.Refuse, fakeprovider.Unavailable,
		fakeprovider.LostRequest, fakeprovider.LostAnswer,
	} {
		for _, provider := range []string{"idempotent", "can only be asked", "cannot be asked"} {
			t.Run(fmt.Sprintf("%d/%s", bank, provider), func(t *testing.T) {
				t.Parallel()
				points := 0
				for died := true; died; {
					points++
					synctest.Test(t, func(t *testing.T) { died = crashAt(t, points, bank, provider) })
				}
				if points < 10 {
					t.Errorf("only %d points", points)
				}
			})
		}
	}
}

func crashAt(t *testing.T, point int, bank fakeprovider.Fault, provider string) (crashed bool) {
	w, h := newWorld(), recovery.Handler{}
	h.Resume, h.Rerun = w.pay, true
	switch provider {
	case "cannot be asked":
		h.IdempotentProvider = true
	case "can only be asked":
		w.bank.Forgetful, w.mail.Forgetful = true, true
		fallthrough
	default:
		h.Probe = w.probe
	}
	w.bank.Next(bank)
	p := &process{Recoverable: w.store, crashAt: point}
	w.setProcess(p)
	crashing, err := guard.New(p, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	crashed = p.run(func() { _, _ = crashing.Run(t.Context(), request(), w.pay) })
	w.setProcess(&process{})
	if n := len(w.bank.Effects()) + len(w.mail.Effects()); n > 2 {
		t.Fatalf("point %d: %d effects before recovery", point, n)
	}
	g, err := guard.New(w.store, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// The caller retries with its key until it gets an answer; the fault may happen in a retry.
	var res idempotency.Result
	for err = errDead; err != nil; res, err = g.Run(t.Context(), request(), w.pay) {
		w.recoverAll(t, h, recovery.Config{})
	}
	again, err := g.Run(t.Context(), request(), w.pay)
	if err != nil || !again.Replayed || again.Code != res.Code || string(again.Body) != string(res.Body) ||
		again.Failure != res.Failure {
		t.Errorf("point %d: %+v, then %+v, %v", point, res, again, err)
	}
	want, code := 1, 201
	if bank == fakeprovider.Refuse && res.Failure != "" {
		// After a crash before the refusal is recorded, the provider may accept the next call.
		want, code = 0, 402
	}
	if len(w.bank.Effects()) != want || len(w.mail.Effects()) != want || res.Code != code || len(w.payments) != 1 {
		t.Errorf("point %d: %d charges, %d mails, %d payments, %+v", point, len(w.bank.Effects()),
			len(w.mail.Effects()), len(w.payments), res)
	}
	return crashed
}

// TestRecovery_RecovererCrashes at every point of its work, and another one continues.
func TestRecovery_RecovererCrashes(t *testing.T) {
	t.Parallel()
	for _, bank := range []fakeprovider.Fault{fakeprovider.LostRequest, fakeprovider.LostAnswer} {
		points := 0
		for died := true; died; {
			points++
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.bank.Next(bank)
				g, err := guard.New(w.store, guard.Config{})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := g.Run(t.Context(), request(), w.pay); err == nil {
					t.Fatal("the outcome is not unknown")
				}
				h := recovery.Handler{Rerun: true, Probe: w.probe, Resume: w.pay}
				advance(recoverDelay)
				p := &process{Recoverable: w.store, crashAt: points}
				w.setProcess(p)
				died = recoverOnce(t, p, h)
				w.setProcess(&process{})
				w.recoverAll(t, h, recovery.Config{})
				rec, _, err := w.store.Get(t.Context(), request().Key)
				if err != nil || rec.State != idempotency.Completed || len(w.bank.Effects()) != 1 ||
					len(w.mail.Effects()) != 1 {
					t.Errorf("point %d: %s, %d charges, %d mails, %v", points, rec.State, len(w.bank.Effects()),
						len(w.mail.Effects()), err)
				}
			})
		}
		if points < 8 {
			t.Errorf("only %d points", points)
		}
	}
}
