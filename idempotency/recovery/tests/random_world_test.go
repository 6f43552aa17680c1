package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
)

var quiet = slog.New(slog.DiscardHandler)

// pay is world.pay, which marks what is on its way to a provider: from before it is recorded until it is answered.
func (r *randomRun) pay(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	k := op.Record().Key
	id, err := op.Local(ctx, "payment", r.insert)
	if err != nil {
		return idempotency.Result{}, err
	}
	card, err := r.call(ctx, op, "charge", chargeKey(k), &r.bank)
	if err != nil {
		return idempotency.Result{Code: http.StatusPaymentRequired}, err
	}
	mail, err := r.call(ctx, op, "mail", guard.StepKey(k, "mail"), &r.mail)
	if err != nil {
		return idempotency.Result{}, err
	}
	return paid(string(id), string(card), string(mail), op.Record().Input), nil
}

func paid(id, card, mail string, input []byte) idempotency.Result {
	return idempotency.Result{Code: http.StatusCreated, Resource: id, Body: fmt.Appendf(nil, "%s %s of %s", card, mail,
		input)}
}

func chargeKey(k idempotency.Key) string {
	return "provider_payment_p-" + guard.StepKey(k, "payment")[:8]
}

func (r *randomRun) call(ctx context.Context, op *guard.Op, step, key string, p *fakeprovider.Provider) ([]byte,
	error,
) {
	r.mark(key, 1)
	answered := sync.OnceFunc(func() { r.mark(key, -1) })
	defer answered()
	return op.CallAs(ctx, step, key, func(ctx context.Context, c guard.Call) ([]byte, error) {
		defer answered()
		return with(p, step)(ctx, c)
	})
}

func (r *randomRun) mark(key string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending[key] += n
}

// look asks the provider of a step. What it does not know did not happen as long as nothing can be on its way; who
// could send it later would have to record it first, which only the owner can.
func (r *randomRun) look(_ context.Context, q recovery.ProbeRequest) (recovery.ProbeResult, error) {
	r.mu.Lock()
	underWay := r.sending[q.Key] > 0
	r.mu.Unlock()
	e, ok := map[string]*fakeprovider.Provider{"charge": &r.bank, "mail": &r.mail}[q.Step].Ask(q.Key)
	switch {
	case ok:
		return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte(e.ID)}, nil
	case underWay:
		return recovery.ProbeResult{}, nil
	}
	return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
}

// decide is a person who looks what recovery has given up, and ends it: by hand where all or nothing was done, and else
// by going on.
func (r *randomRun) decide(ctx context.Context, s store.Recoverable) {
	lister, ok := s.(store.Lister)
	if !ok {
		panic("the store does not list what is stuck")
	}
	stuck, _ := lister.Stuck(ctx, 100)
	for _, rec := range stuck {
		if rec.Key.Operation != r.operation {
			continue
		}
		c, err := store.ClaimStuck(ctx, s, rec.Key, r.real(30*time.Second))
		if err != nil {
			continue
		}
		if !r.byHand(ctx, s, c) {
			r.goOn(ctx, s, c)
		}
	}
}

// byHand reports whether it was a case for that.
func (r *randomRun) byHand(ctx context.Context, s store.Recoverable, c store.ClaimResult) bool {
	k := c.Record.Key
	charge := recovery.ProbeRequest{Step: "charge", Key: chargeKey(k)}
	mail := recovery.ProbeRequest{Step: "mail", Key: guard.StepKey(k, "mail")}
	charged, _ := r.look(ctx, charge)
	mailed, _ := r.look(ctx, mail)
	switch {
	case charged.Outcome == recovery.Happened && mailed.Outcome == recovery.Happened:
		res := paid("p-"+guard.StepKey(k, "payment")[:8], string(charged.Data), string(mailed.Data), c.Record.Input)
		_ = s.Finish(ctx, c.Lease, res, idempotency.Retention{})
		return true
	case charged.Outcome == recovery.NotHappened && mailed.Outcome == recovery.NotHappened && r.roll(2) == 0:
		_ = s.Release(ctx, c.Lease)
		return true
	}
	return false
}

// goOn finds out about the open steps and goes on with the work.
func (r *randomRun) goOn(ctx context.Context, s store.Recoverable, c store.ClaimResult) {
	g, err := guard.New(s, guard.Config{Lease: r.real(30 * time.Second), RecordTimeout: r.real(10 * time.Second)})
	if err != nil {
		panic(err)
	}
	_, err = g.Resume(ctx, c, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		for _, step := range op.Steps() {
			if step.State != store.StepSent {
				continue
			}
			a, _ := r.look(ctx, recovery.ProbeRequest{Step: step.Name, Key: step.Key})
			to := map[recovery.ProbeOutcome]store.StepState{recovery.Happened: store.StepDone, recovery.NotHappened: ""}
			state, known := to[a.Outcome]
			if !known {
				return idempotency.Result{}, errors.New("something is on its way")
			}
			if err := op.Resolve(ctx, step.Name, state, a.Data); err != nil {
				return idempotency.Result{}, err
			}
		}
		return r.pay(ctx, op)
	})
	if err != nil {
		_ = s.MarkUnknown(ctx, c.Lease, store.Reason(err), r.real(time.Second))
	}
}

func (r *randomRun) unfinished(t *testing.T) bool {
	t.Helper()
	for i := range keys {
		rec, found, err := r.store.Get(t.Context(), r.request(strconv.Itoa(i), 0).Key)
		if err != nil || found && (rec.State == idempotency.InProgress || rec.State == idempotency.Unknown) {
			return true
		}
	}
	return false
}

// check compares what clients were told with what is recorded, and that with what was done.
func (r *randomRun) check(t *testing.T) {
	t.Helper()
	for i := range keys {
		value := strconv.Itoa(i)
		k := r.request(value, 0).Key
		rec, found, err := r.store.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		switch {
		case found && rec.State == idempotency.Completed:
			want = 1
		case found && rec.State != idempotency.FailedReplayable:
			t.Errorf("seed %d: key %s is %s at the end: %s", r.seed, value, rec.State, rec.Reason)
			continue
		}
		if effects := r.effects(k); slices.ContainsFunc(effects, func(n int) bool { return n != want }) {
			t.Errorf("seed %d: key %s (%s) has %v", r.seed, value, rec.State, effects)
		}
		for _, a := range r.told {
			if a.key == value && (!found || a.command != rec.Fingerprint.Sum[0] || a.code != rec.Result.Code ||
				a.body != string(rec.Result.Body)) {
				t.Errorf("seed %d: somebody was told %+v, the record is %q %+v", r.seed, a, rec.State, rec.Result)
			}
		}
	}
}

// charges counts charges and mails of a key.
func (r *randomRun) charges(k idempotency.Key) []int {
	n := make([]int, 2)
	for _, e := range r.bank.Effects() {
		if e.Key == chargeKey(k) {
			n[0]++
		}
	}
	for _, e := range r.mail.Effects() {
		if e.Key == guard.StepKey(k, "mail") {
			n[1]++
		}
	}
	return n
}

// fate is what becomes of a call over a network.
type fate int

const (
	arrives fate = iota
	requestLost
	replyLost
	late // its caller has given it up when it is executed
)

var errAway = errors.New("the store does not answer")

// fate draws one.
func (r *randomRun) fate() fate {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := arrives
	switch n := r.random.IntN(400); {
	case r.away > 0:
		r.away--
		f = []fate{requestLost, late}[n%2]
	case n == 0:
		r.away = 1 + r.random.IntN(30)
		f = requestLost
	case n < 15:
		f = requestLost
	case n < 30:
		f = replyLost
	case n < 45:
		f = late
	}
	if f != arrives {
		r.lost++
	}
	if f == late {
		r.lates++
	}
	return f
}

// later executes something after its caller has given it up.
func (r *randomRun) later(execute func()) {
	r.pending.Go(func() {
		r.pass(8 * time.Second)
		execute()
	})
}

// network is the way of one process to a store. As the servers' clients do, it numbers saves, so that an older one does
// not replace a newer one.
type network struct {
	person
	r *randomRun

	mu     sync.Mutex
	seq    int
	latest map[idempotency.Key]int
}

func over[T any](ctx context.Context, n *network, call func(ctx context.Context) (T, error)) (T, error) {
	var nothing T
	switch n.r.fate() {
	case requestLost:
		return nothing, errAway
	case replyLost:
		_, _ = call(ctx)
		return nothing, errAway
	case late:
		n.r.later(func() { _, _ = call(context.WithoutCancel(ctx)) })
		return nothing, errAway
	}
	return call(ctx)
}

// send is over for what answers nothing.
func (n *network) send(ctx context.Context, call func(ctx context.Context) error) error {
	_, err := over(ctx, n, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

func (n *network) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	return over(ctx, n, func(ctx context.Context) (store.ClaimResult, error) { return n.person.Claim(ctx, r, opt) })
}

func (n *network) Extend(ctx context.Context, l store.Lease, d time.Duration) error {
	return n.send(ctx, func(ctx context.Context) error { return n.person.Extend(ctx, l, d) })
}

func (n *network) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	n.mu.Lock()
	n.seq++
	mine := n.seq
	n.mu.Unlock()
	return n.send(ctx, func(ctx context.Context) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if mine < n.latest[l.Key] {
			return nil
		}
		n.latest[l.Key] = mine
		return n.person.Save(ctx, l, p)
	})
}

func (n *network) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	return n.send(ctx, func(ctx context.Context) error { return n.person.Finish(ctx, l, res, keep) })
}

func (n *network) Release(ctx context.Context, l store.Lease) error {
	return n.send(ctx, func(ctx context.Context) error { return n.person.Release(ctx, l) })
}

func (n *network) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return n.send(ctx, func(ctx context.Context) error { return n.person.MarkUnknown(ctx, l, reason, after) })
}

func (n *network) Get(ctx context.Context, k idempotency.Key) (rec store.Record, found bool, err error) {
	if n.r.fate() != arrives {
		return rec, false, errAway
	}
	return n.person.Get(ctx, k)
}

func (n *network) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	return over(ctx, n, func(ctx context.Context) ([]store.ClaimResult, error) { return n.person.Recover(ctx, opt) })
}

func (n *network) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	return n.send(ctx, func(ctx context.Context) error { return n.person.Postpone(ctx, l, reason, after, stuck) })
}
