package idempotencytest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
)

// histories are the tests by random histories.
func histories() []testCase {
	return []testCase{
		{"History_EqualsMemoryStore", false, historyEqualsMemory},
		{"History_Linearizable", false, historyLinearizable},
	}
}

// historyEqualsMemory: random calls, also under lost leases, have the same results as in the memory store, whose clock
// is advanced, so that leases end in both between two calls.
func historyEqualsMemory(t *testing.T, s *suite) {
	tried, failed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		// rapid has one count for all; after a failure it has to be let search for a shorter history.
		if tried++; tried > s.Features.Histories && !failed {
			return
		}
		p := &lockstep{
			t: rt, test: t, real: s, op: "op-" + rand.Text(), now: time.Unix(1e9, 0), fences: map[int64]int64{},
		}
		p.model = memstore.New(memstore.Config{Now: func() time.Time { return p.now }})
		p.r = (&suite{op: p.op}).fresh()
		defer func() { failed = failed || rt.Failed() || p.broken }()
		for range rapid.IntRange(1, 25).Draw(rt, "calls") {
			p.step()
		}
	})
}

// lockstep runs a history on the store and on the model.
type lockstep struct {
	t           *rapid.T
	test        *testing.T
	real        *suite
	model       *memstore.Store
	now         time.Time // the model's
	op          string
	r           idempotency.Request
	leases      []store.Lease // of the store, and the model's in modelLeases
	modelLeases []store.Lease
	fences      map[int64]int64 // of the store to the model's
	highest     int64           // the store's highest
	writes      int             // a number for each content
	broken      bool
}

func (p *lockstep) fatal(format string, args ...any) {
	p.t.Helper()
	p.broken = true
	p.t.Fatalf(format, args...)
}

// span draws a lease, delay or retention: long, or one that ends at once.
func (p *lockstep) span(what string) time.Duration {
	if rapid.Bool().Draw(p.t, what+" ends") {
		return p.real.tick()
	}
	return long
}

// step makes one call on both, and compares the results and the records.
func (p *lockstep) step() {
	switch kind := rapid.SampledFrom([]string{"claim", "claim", "write", "write", "write", "recover", "sweep"}).Draw(
		p.t, "call"); {
	case kind == "recover":
		p.recover()
	case kind == "sweep":
		for _, r := range []store.Recoverer{p.real.Recoverer, p.model} {
			if _, err := r.Sweep(p.test.Context(), 100); err != nil {
				p.fatal("sweep: %v", err)
			}
		}
	case kind == "claim" || len(p.leases) == 0:
		p.claim()
	default:
		p.write()
	}
	p.compare()
}

// passTime lets everything short end, in the store by waiting.
func (p *lockstep) passTime(until func(rec store.Record, there bool) bool) {
	p.now = p.now.Add(p.real.tick() + time.Second)
	await(p.test, "time to pass", func() bool {
		rec, there, err := p.real.Store.Get(p.test.Context(), p.r.Key)
		return err != nil || until(rec, there)
	})
}

func leaseEnded(rec store.Record, there bool) bool { return !there || rec.LeaseLeft <= 0 }

func (p *lockstep) claim() {
	r := p.r
	if rapid.IntRange(0, 4).Draw(p.t, "command") == 0 {
		r = other(r)
	}
	opt := store.ClaimOptions{Token: rand.Text(), Lease: p.span("lease"), Rerun: rapid.Bool().Draw(p.t, "rerun")}
	if len(p.leases) > 0 && rapid.IntRange(0, 3).Draw(p.t, "token") == 0 {
		opt.Token = p.leases[rapid.IntRange(0, len(p.leases)-1).Draw(p.t, "of")].Token
	}
	got, err := p.real.Store.Claim(p.test.Context(), r, opt)
	want, err2 := p.model.Claim(p.test.Context(), r, opt)
	if err != nil || err2 != nil || got.Won != want.Won {
		p.fatal("claim %+v: %+v, %v; want %+v, %v", opt, got, err, want, err2)
	}
	if got.Won {
		p.addLease(got.Lease, want.Lease)
	}
	p.same(got.Record, want.Record, opt.Lease == long)
	if got.Won && opt.Lease == p.real.tick() {
		p.passTime(leaseEnded)
	}
}

// addLease records a lease that both have returned.
func (p *lockstep) addLease(got, want store.Lease) {
	if known, there := p.fences[got.Fence]; there && known != want.Fence || !there && got.Fence <= p.highest {
		p.fatal("fence %d after %d; the model's is %d", got.Fence, p.highest, want.Fence)
	}
	p.fences[got.Fence], p.highest = want.Fence, max(p.highest, got.Fence)
	p.leases, p.modelLeases = append(p.leases, got), append(p.modelLeases, want)
}

func (p *lockstep) recover() {
	opt := store.RecoverOptions{Limit: 3, Lease: p.span("lease"), Token: rand.Text(), Operations: []string{p.op}}
	if rapid.Bool().Draw(p.t, "grace") {
		opt.Grace = long
	}
	got, err := p.real.Recoverer.Recover(p.test.Context(), opt)
	want, err2 := p.model.Recover(p.test.Context(), opt)
	if err != nil || err2 != nil || len(got) != len(want) {
		p.fatal("recover %+v: %+v, %v; want %+v, %v", opt, got, err, want, err2)
	}
	for i := range got {
		p.addLease(got[i].Lease, want[i].Lease)
		p.same(got[i].Record, want[i].Record, opt.Lease == long)
		if opt.Lease == p.real.tick() {
			p.passTime(leaseEnded)
		}
	}
}

// write makes a holder's call under any lease that was ever given.
func (p *lockstep) write() {
	i := rapid.IntRange(0, len(p.leases)-1).Draw(p.t, "under")
	if rapid.Bool().Draw(p.t, "last") {
		i = len(p.leases) - 1
	}
	p.writes++
	ctx, text := p.test.Context(), fmt.Sprint("call ", p.writes)
	var call func(store.Store, store.Recoverer, store.Lease) error
	until := leaseEnded
	var span time.Duration
	switch kind := rapid.SampledFrom([]string{
		"extend", "save", "finish", "refuse", "release", "mark unknown", "postpone",
		"stuck",
	}).Draw(p.t, "write"); kind {
	case "extend":
		span = p.span("lease")
		call = func(s store.Store, _ store.Recoverer, l store.Lease) error {
			return s.Extend(ctx, l, span)
		}
	case "save":
		stage := rapid.SampledFrom([]idempotency.Stage{idempotency.LocalCreated, idempotency.ProviderRequestSent}).Draw(
			p.t, "stage")
		now := store.Progress{Stage: stage, Steps: []store.Step{
			{Name: text, State: store.StepDone, Data: []byte(text)},
		}}
		call = func(s store.Store, _ store.Recoverer, l store.Lease) error {
			return s.Save(ctx, l, now)
		}
	case "finish", "refuse":
		res, keep := result(text), idempotency.Retention{}
		if kind == "refuse" {
			res.Failure = text
		}
		if keep.Body = p.span("body"); keep.Body == p.real.tick() {
			keep.Tombstone = p.span("tombstone")
			span = keep.Body
			until = func(rec store.Record, there bool) bool {
				return !there || keep.Tombstone == long && rec.State == idempotency.Expired
			}
		}
		call = func(s store.Store, _ store.Recoverer, l store.Lease) error {
			return s.Finish(ctx, l, res, keep)
		}
	case "release":
		call = func(s store.Store, _ store.Recoverer, l store.Lease) error {
			return s.Release(ctx, l)
		}
	default:
		after := []time.Duration{0, long}[rapid.IntRange(0, 1).Draw(p.t, "delay")]
		call = func(s store.Store, r store.Recoverer, l store.Lease) error {
			if kind == "mark unknown" {
				return s.MarkUnknown(ctx, l, text, after)
			}
			return r.Postpone(ctx, l, text, after, kind == "stuck")
		}
	}
	before, _, _ := p.model.Get(ctx, p.r.Key)
	got, want := call(p.real.Store, p.real.Recoverer, p.leases[i]), call(p.model, p.model, p.modelLeases[i])
	if want == nil && got != nil || want != nil && !errors.Is(got, store.ErrLeaseLost) {
		p.fatal("%v, want %v", got, want)
	}
	unfinished := before.State == idempotency.InProgress || before.State == idempotency.Unknown
	if want == nil && unfinished && span == p.real.tick() {
		p.passTime(until)
	}
}

// compare reads the key from both.
func (p *lockstep) compare() {
	got, there, err := p.real.Store.Get(p.test.Context(), p.r.Key)
	want, there2, err2 := p.model.Get(p.test.Context(), p.r.Key)
	if err != nil || err2 != nil || there != there2 {
		p.fatal("there: %v, %v; want %v, %v", there, err, there2, err2)
	}
	if there {
		p.same(got, want, true)
	}
}

// same compares the records; a short lease may end at any time.
func (p *lockstep) same(got, want store.Record, lease bool) {
	if got.Key != want.Key || got.State != want.State || got.Fingerprint != want.Fingerprint ||
		!sameProgress(got.Progress, want.Progress) ||
		string(got.Input) != string(want.Input) || (got.Input == nil) != (want.Input == nil) ||
		!sameResult(got.Result, want.Result) ||
		p.fences[got.Fence] != want.Fence || lease && (got.LeaseLeft > 0) != (want.LeaseLeft > 0) ||
		got.Attempts != want.Attempts ||
		got.Reason != want.Reason || got.Stuck != want.Stuck {
		p.fatal("the store knows %+v,\nthe model %+v (fences %v)", got, want, p.fences)
	}
}
