package idempotencytest

import (
	"crypto/rand"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// sweeps are the tests on retention and counts.
func sweeps() []testCase {
	return []testCase{
		{"Sweep_BodiesThenTombstones", true, sweepBodiesThenTombstones},
		{"Sweep_KeepsUnfinished", true, sweepKeepsUnfinished},
		{"Sweep_KeepsNotOverdue", true, sweepKeepsNotOverdue},
		{"Sweep_KeepsNewOwner", true, sweepKeepsNewOwner},
		{"Expired_KeepsOutcome", true, expiredKeepsOutcome},
		{"Stats_Counts", true, statsCounts},
	}
}

// sweepAll sweeps in batches until nothing is left.
func (s *suite) sweepAll(t *testing.T, limit int) (all store.SweepResult) {
	t.Helper()
	for range 1000 {
		got, err := s.Recoverer.Sweep(t.Context(), limit)
		ok(t, "sweep", err)
		if got.Bodies+got.Tombstones > limit {
			t.Fatalf("%+v, with a limit of %d", got, limit)
		}
		all.Bodies += got.Bodies
		all.Tombstones += got.Tombstones
		if !got.More {
			return all
		}
	}
	t.Fatal("there is always more")
	return all
}

func sweepBodiesThenTombstones(t *testing.T, s *suite) {
	const n = 7
	if got := s.sweepAll(t, 10); got != (store.SweepResult{}) {
		t.Fatalf("of nothing: %+v", got)
	}
	var bodies, tombs []idempotency.Request
	for range n {
		r := s.fresh()
		s.finish(t, s.claimNew(t, r), result("x"), idempotency.Retention{Body: s.tick()})
		bodies = append(bodies, r)
	}
	for _, r := range bodies {
		s.awaitBodyEnd(t, r.Key)
	}
	if got, err := s.Recoverer.Sweep(t.Context(), 0); err != nil || got.Bodies+got.Tombstones != 0 {
		t.Fatalf("sweep 0: %+v, %v", got, err)
	}
	if got, err := s.Recoverer.Sweep(t.Context(), 3); err != nil || !s.Features.ServerTTL &&
		(got.Bodies != 3 || !got.More) {
		t.Fatalf("sweep 3: %+v, %v", got, err)
	}
	if got := s.sweepAll(t, 3); !s.Features.ServerTTL && got.Bodies != n-3 || got.Tombstones != 0 {
		t.Fatalf("%+v", got)
	}
	for _, r := range bodies {
		wantState(t, s.get(t, r.Key), idempotency.Expired)
	}
	for range n {
		r := s.fresh()
		s.finish(t, s.claimNew(t, r), result("x"), idempotency.Retention{Body: s.tick(), Tombstone: s.tick()})
		tombs = append(tombs, r)
	}
	for _, r := range tombs {
		s.awaitForgotten(t, r.Key)
	}
	got := s.sweepAll(t, 3)
	if !s.Features.ServerTTL && got.Tombstones != n {
		t.Errorf("%+v, want %d tombstones", got, n)
	}
	if got := s.sweepAll(t, 3); got != (store.SweepResult{}) {
		t.Errorf("once more: %+v", got)
	}
	for _, r := range bodies {
		wantState(t, s.get(t, r.Key), idempotency.Expired)
	}
}

// sweepKeepsUnfinished: keys in progress or unknown are kept, however old.
func sweepKeepsUnfinished(t *testing.T, s *suite) {
	states := map[string]idempotency.State{
		"leased": idempotency.InProgress, "lapsed": idempotency.InProgress, "waiting": idempotency.Unknown,
		"due":        idempotency.Unknown,
		"recovering": idempotency.Unknown, "stuck": idempotency.Unknown,
	}
	keys := map[string]idempotency.Request{}
	for situation := range states {
		cell := &suite{Harness: s.Harness, op: "op-" + situation}
		keys[situation] = cell.fresh()
		cell.arrange(t, keys[situation], situation)
	}
	if got := s.sweepAll(t, 100); got != (store.SweepResult{}) {
		t.Errorf("swept %+v", got)
	}
	for situation, want := range states {
		rec := s.get(t, keys[situation].Key)
		if rec.State != want || string(rec.Input) != string(keys[situation].Input) {
			t.Errorf("%s: %+v", situation, rec)
		}
	}
}

func sweepKeepsNotOverdue(t *testing.T, s *suite) {
	refusal := result("no")
	refusal.Failure = "declined"
	type kept struct {
		r   idempotency.Request
		res idempotency.Result
	}
	var all []kept
	for _, keep := range []idempotency.Retention{
		{},
		{Body: -1},
		{Tombstone: -1},
		{Body: -1, Tombstone: -1},
		{Body: long},
		{Tombstone: s.tick(), Body: long},
	} {
		for _, res := range []idempotency.Result{result("yes"), refusal} {
			r := s.fresh()
			s.finish(t, s.claimNew(t, r), res, keep)
			all = append(all, kept{r, res})
		}
	}
	if got := s.sweepAll(t, 100); got != (store.SweepResult{}) {
		t.Errorf("swept %+v", got)
	}
	for _, k := range all {
		if rec := s.get(t, k.r.Key); !sameResult(rec.Result, k.res) {
			t.Errorf("%+v", rec)
		}
	}
}

// sweepKeepsNewOwner: between a sweep's query and its write a caller claims the key, whose tombstone is overdue.
func sweepKeepsNewOwner(t *testing.T, s *suite) {
	for range 15 {
		r := s.fresh()
		s.finishAndForget(t, s.claimNew(t, r))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.Recoverer.Sweep(t.Context(), 10); err != nil {
				t.Errorf("sweep: %v", err)
			}
		})
		got, err := s.Store.Claim(t.Context(), r, store.ClaimOptions{Token: rand.Text(), Lease: long})
		wg.Wait()
		if err != nil || !got.Won {
			t.Fatalf("%+v, %v", got, err)
		}
		ok(t, "the new owner's save", s.Store.Save(t.Context(), got.Lease,
			store.Progress{Stage: idempotency.LocalCreated}))
	}
}

// expiredKeepsOutcome: without the body, overdue or swept, outcome and fingerprint are kept.
func expiredKeepsOutcome(t *testing.T, s *suite) {
	refusal := result("no")
	refusal.Failure = "declined"
	for _, res := range []idempotency.Result{result("yes"), refusal} {
		r := s.fresh()
		l := s.claimNew(t, r)
		ok(t, "save", s.Store.Save(t.Context(), l, store.Progress{
			Stage: idempotency.ProviderConfirmed,
			Steps: []store.Step{{Name: "a", Data: []byte("card")}},
		}))
		s.finish(t, l, res, idempotency.Retention{Body: s.tick()})
		s.awaitBodyEnd(t, r.Key)
		for range 2 {
			want := res
			want.Body, want.Header = nil, nil
			for _, rec := range []store.Record{s.get(t, r.Key), s.claim(t, r, rand.Text(), long, true).Record} {
				if rec.State != idempotency.Expired || !sameResult(rec.Result, want) || rec.Result.At.IsZero() ||
					len(rec.Progress.Steps) != 0 {
					t.Errorf("%+v", rec)
				}
			}
			if got := s.claim(t, other(r), rand.Text(), long, true); got.Won ||
				other(r).Matches(got.Record.Fingerprint) {
				t.Errorf("another command: %+v", got)
			}
			s.sweepAll(t, 10)
		}
	}
}

func statsCounts(t *testing.T, s *suite) {
	count := func() store.Stats {
		got, err := s.Recoverer.Stats(t.Context())
		ok(t, "stats", err)
		return got
	}
	if got := count(); got != (store.Stats{}) {
		t.Fatalf("of nothing: %+v", got)
	}
	for _, situation := range []string{
		"leased", "lapsed", "waiting", "due", "recovering", "stuck", "done", "refused",
		"expired",
	} {
		cell := &suite{Harness: s.Harness, op: "op-" + situation}
		cell.arrange(t, cell.fresh(), situation)
	}
	first := count()
	if first.InProgress != 2 || first.Unknown != 4 || first.Stuck != 1 || first.OldestInProgress <= 0 {
		t.Errorf("%+v", first)
	}
	await(t, "the oldest to grow older", func() bool { return count().OldestInProgress > first.OldestInProgress })
}
