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

// pay is world.pay, and counts requests to providers that are in flight, from before the step is recorded.
func (r *randomRun) pay(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	k := op.Record().Key
	id, err := op.Local(ctx, "payment", r.insert)
	if err != nil {
		return idempotency.Result{}, err
	}
	r.randomPause(6 * time.Second) // it may lose its lease, and not notice
	card, err := r.call(ctx, op, "charge", chargeKey(k), &r.bank)
	if err != nil {
		return idempotency.Result{Code: http.StatusPaymentRequired}, err
	}
	mail, err := r.call(ctx, op, "mail", guard.StepKey(k, "mail"), &r.mail)
	if err != nil {
		return idempotency.Result{}, err
	}
	return paidResult(string(id), string(card), string(mail), op.Record().Input), nil
}

func paidResult(id, card, mail string, input []byte) idempotency.Result {
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
		return callProvider(p, step)(ctx, c)
	})
}

func (r *randomRun) mark(key string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight[key] += n
}

// probe asks the provider of a step. If the provider does not know it, and no request is in flight, it did not happen:
// a later request would need a record, which only the owner can write.
func (r *randomRun) probe(_ context.Context, q recovery.ProbeRequest) (recovery.ProbeResult, error) {
	r.mu.Lock()
	inFlight := r.inFlight[q.Key] > 0
	r.mu.Unlock()
	e, ok := map[string]*fakeprovider.Provider{"charge": &r.bank, "mail": &r.mail}[q.Step].Ask(q.Key)
	switch {
	case ok:
		return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte(e.ID)}, nil
	case inFlight:
		return recovery.ProbeResult{}, nil
	}
	return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
}

// resolveStuck is a person who resolves stuck operations: by hand if everything or nothing was done, else by resuming.
func (r *randomRun) resolveStuck(ctx context.Context, s store.Recoverable) {
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
		if !r.resolveByHand(ctx, s, c) {
			r.resumeStuck(ctx, s, c)
		}
	}
}

// resolveByHand finishes or releases the key if everything or nothing was done; false: it did neither.
func (r *randomRun) resolveByHand(ctx context.Context, s store.Recoverable, c store.ClaimResult) bool {
	k := c.Record.Key
	charge := recovery.ProbeRequest{Step: "charge", Key: chargeKey(k)}
	mail := recovery.ProbeRequest{Step: "mail", Key: guard.StepKey(k, "mail")}
	charged, _ := r.probe(ctx, charge)
	mailed, _ := r.probe(ctx, mail)
	switch {
	case charged.Outcome == recovery.Happened && mailed.Outcome == recovery.Happened:
		res := paidResult("p-"+guard.StepKey(k, "payment")[:8], string(charged.Data), string(mailed.Data),
			c.Record.Input)
		_ = s.Finish(ctx, c.Lease, res, idempotency.Retention{})
		return true
	case charged.Outcome == recovery.NotHappened && mailed.Outcome == recovery.NotHappened && r.roll(2) == 0:
		_ = s.Release(ctx, c.Lease)
		return true
	}
	return false
}

// resumeStuck resolves the open steps and resumes the work.
func (r *randomRun) resumeStuck(ctx context.Context, s store.Recoverable, c store.ClaimResult) {
	g, err := guard.New(s, guard.Config{Lease: r.real(30 * time.Second), RecordTimeout: r.real(10 * time.Second)})
	if err != nil {
		panic(err)
	}
	_, err = g.Resume(ctx, c, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		for _, step := range op.Steps() {
			if step.State != store.StepSent {
				continue
			}
			a, _ := r.probe(ctx, recovery.ProbeRequest{Step: step.Name, Key: step.Key})
			to := map[recovery.ProbeOutcome]store.StepState{recovery.Happened: store.StepDone, recovery.NotHappened: ""}
			state, known := to[a.Outcome]
			if !known {
				return idempotency.Result{}, errors.New("a request is in flight")
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

// check compares the answers with the records, and the records with the effects.
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
		for _, a := range r.answers {
			if a.key == value && (!found || a.command != rec.Fingerprint.Sum[0] || a.code != rec.Result.Code ||
				a.body != string(rec.Result.Body)) {
				t.Errorf("seed %d: a client got %+v, the record is %q %+v", r.seed, a, rec.State, rec.Result)
			}
		}
	}
}

// charges returns the numbers of charges and mails of a key.
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

// fault is the fate of a call over the network.
type fault int

const (
	delivered fault = iota
	requestLost
	replyLost
	executedLate // after its caller has given up
)

var errUnavailable = errors.New("the store does not answer")

// drawFault returns a random fault.
func (r *randomRun) drawFault() fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := delivered
	switch n := r.random.IntN(400); {
	case r.outage > 0:
		r.outage--
		f = []fault{requestLost, executedLate}[n%2]
	case n == 0:
		r.outage = 1 + r.random.IntN(30)
		f = requestLost
	case n < 15:
		f = requestLost
	case n < 30:
		f = replyLost
	case n < 45:
		f = executedLate
	}
	if f != delivered {
		r.lost++
	}
	if f == executedLate {
		r.late++
	}
	return f
}

// runLate executes a call later.
func (r *randomRun) runLate(execute func()) {
	r.lateCalls.Go(func() {
		r.randomPause(8 * time.Second)
		execute()
	})
}

// network is a process's connection to a store. Like the stores' clients it numbers saves, so that an older one does
// not replace a newer one.
type network struct {
	listerStore
	r *randomRun

	mu     sync.Mutex
	seq    int
	latest map[idempotency.Key]int
}

func sendOver[T any](ctx context.Context, n *network, call func(ctx context.Context) (T, error)) (T, error) {
	var zero T
	switch n.r.drawFault() {
	case requestLost:
		return zero, errUnavailable
	case replyLost:
		_, _ = call(ctx)
		return zero, errUnavailable
	case executedLate:
		n.r.runLate(func() { _, _ = call(context.WithoutCancel(ctx)) })
		return zero, errUnavailable
	}
	return call(ctx)
}

// send is sendOver for calls that return only an error.
func (n *network) send(ctx context.Context, call func(ctx context.Context) error) error {
	_, err := sendOver(ctx, n, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

func (n *network) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	return sendOver(ctx, n, func(ctx context.Context) (store.ClaimResult, error) {
		return n.listerStore.Claim(ctx, r,
			opt)
	})
}

func (n *network) Extend(ctx context.Context, l store.Lease, d time.Duration) error {
	return n.send(ctx, func(ctx context.Context) error { return n.listerStore.Extend(ctx, l, d) })
}

func (n *network) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	n.mu.Lock()
	n.seq++
	seq := n.seq
	n.mu.Unlock()
	return n.send(ctx, func(ctx context.Context) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if seq < n.latest[l.Key] {
			return nil
		}
		n.latest[l.Key] = seq
		return n.listerStore.Save(ctx, l, p)
	})
}

func (n *network) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	return n.send(ctx, func(ctx context.Context) error { return n.listerStore.Finish(ctx, l, res, keep) })
}

func (n *network) Release(ctx context.Context, l store.Lease) error {
	return n.send(ctx, func(ctx context.Context) error { return n.listerStore.Release(ctx, l) })
}

func (n *network) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return n.send(ctx, func(ctx context.Context) error { return n.listerStore.MarkUnknown(ctx, l, reason, after) })
}

func (n *network) Get(ctx context.Context, k idempotency.Key) (rec store.Record, found bool, err error) {
	if n.r.drawFault() != delivered {
		return rec, false, errUnavailable
	}
	return n.listerStore.Get(ctx, k)
}

func (n *network) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	return sendOver(ctx, n, func(ctx context.Context) ([]store.ClaimResult, error) {
		return n.listerStore.Recover(ctx,
			opt)
	})
}

func (n *network) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	return n.send(ctx, func(ctx context.Context) error { return n.listerStore.Postpone(ctx, l, reason, after, stuck) })
}
