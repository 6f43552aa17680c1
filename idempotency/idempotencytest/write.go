package idempotencytest

import (
	"crypto/rand"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// writes are the tests on an owner's writes.
func writes() []testCase {
	return []testCase{
		{"Extend_CanShorten", false, extendCanShorten},
		{"Save_NeedsRunningLease", false, saveNeedsRunningLease},
		{"Finish_KeepsFirstResult", false, finishKeepsFirstResult},
		{"Finish_RemovesInput", false, finishRemovesInput},
		{"Finish_AfterLeaseExpired", false, finishAfterLeaseExpired},
		{"Finish_ByRecoverer", false, finishByRecoverer},
		{"Release_ForAnyCommand", false, releaseForAnyCommand},
		{"Release_SentAgainKeepsNextOwner", false, releaseSentAgainKeepsNextOwner},
		{"MarkUnknown_HasReason", false, markUnknownHasReason},
		{"Fencing_LateWriter_PowertoolsUnconditionalUpdate", false, fencingLateWriter},
	}
}

func extendCanShorten(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	ok(t, "extend", s.Store.Extend(t.Context(), l, s.tick()))
	s.awaitLeaseEnd(t, r.Key)
	ok(t, "extend what ended unnoticed", s.Store.Extend(t.Context(), l, long))
	if got := s.claim(t, r, rand.Text(), long, true); got.Won || got.Record.LeaseLeft <= 0 {
		t.Errorf("%+v", got)
	}
}

func saveNeedsRunningLease(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	one := store.Progress{Stage: idempotency.LocalCreated, Steps: []store.Step{{Name: "a", State: store.StepDone}}}
	for range 2 {
		ok(t, "save", s.Store.Save(t.Context(), l, one))
	}
	ok(t, "extend", s.Store.Extend(t.Context(), l, s.tick()))
	s.awaitLeaseEnd(t, r.Key)
	wantLost(t, "save", s.Store.Save(t.Context(), l, store.Progress{Stage: idempotency.ProviderConfirmed}))
	if rec := s.get(t, r.Key); !sameProgress(rec.Progress, one) {
		t.Errorf("%+v", rec.Progress)
	}
}

func finishKeepsFirstResult(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	s.finish(t, l, result("first"), idempotency.Retention{})
	refusal := result("second")
	refusal.Failure = "declined"
	s.finish(t, l, refusal, idempotency.Retention{})
	rec := s.get(t, r.Key)
	wantState(t, rec, idempotency.Completed)
	if !sameResult(rec.Result, result("first")) || rec.Result.At.IsZero() || rec.Result.Replayed {
		t.Errorf("%+v", rec.Result)
	}
	denied := s.claim(t, r, rand.Text(), long, true)
	if denied.Won || !sameResult(denied.Record.Result, result("first")) ||
		!denied.Record.Result.At.Equal(rec.Result.At) {
		t.Errorf("%+v", denied)
	}
}

func finishRemovesInput(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	if rec := s.get(t, r.Key); string(rec.Input) != string(r.Input) {
		t.Fatalf("%q", rec.Input)
	}
	s.finish(t, l, result("x"), idempotency.Retention{})
	if rec := s.get(t, r.Key); rec.Input != nil {
		t.Errorf("the input is still there: %q", rec.Input)
	}
}

// finishAfterLeaseExpired: the key became unknown after the end of the lease, and nobody has claimed it: the late
// owner's result is recorded.
func finishAfterLeaseExpired(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimLapsed(t, r)
	wantState(t, s.claim(t, r, rand.Text(), long, false).Record, idempotency.Unknown)
	s.finish(t, l, result("late"), idempotency.Retention{})
	rec := s.get(t, r.Key)
	wantState(t, rec, idempotency.Completed)
	if !sameResult(rec.Result, result("late")) {
		t.Errorf("%+v", rec.Result)
	}
	if got := s.recoverUpTo(t, 10); len(got) != 0 {
		t.Errorf("recovered %+v", got)
	}
}

func finishByRecoverer(t *testing.T, s *suite) {
	r := s.fresh()
	owner := s.claimLapsed(t, r)
	c := s.recoverOnly(t, r.Key)
	wantLost(t, "the owner's finish", s.Store.Finish(t.Context(), owner, result("late"), idempotency.Retention{}))
	ok(t, "extend", s.Store.Extend(t.Context(), c.Lease, 2*long))
	ok(t, "save", s.Store.Save(t.Context(), c.Lease, store.Progress{Stage: idempotency.ProviderConfirmed}))
	s.finish(t, c.Lease, result("asked the provider"), idempotency.Retention{})
	if rec := s.get(t, r.Key); rec.State != idempotency.Completed ||
		!sameResult(rec.Result, result("asked the provider")) {
		t.Errorf("%+v", rec)
	}
}

func releaseForAnyCommand(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	ok(t, "save", s.Store.Save(t.Context(), l, store.Progress{Stage: idempotency.LocalCreated}))
	ok(t, "release", s.Store.Release(t.Context(), l))
	ok(t, "release again", s.Store.Release(t.Context(), l))
	if _, there, err := s.Store.Get(t.Context(), r.Key); err != nil || there {
		t.Fatalf("there %v, %v", there, err)
	}
	got := s.claim(t, other(r), rand.Text(), long, false)
	if !got.Won || got.Record.Progress.Stage != idempotency.Received || got.Record.Fingerprint != other(r).Fingerprint {
		t.Errorf("%+v", got)
	}
}

func releaseSentAgainKeepsNextOwner(t *testing.T, s *suite) {
	r := s.fresh()
	first := s.claimNew(t, r)
	ok(t, "release", s.Store.Release(t.Context(), first))
	s.claimNew(t, r)
	wantLost(t, "release again", s.Store.Release(t.Context(), first))
	wantState(t, s.get(t, r.Key), idempotency.InProgress)
}

func markUnknownHasReason(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "the provider did not answer: žluťoučký", long))
	ok(t, "mark unknown again", s.Store.MarkUnknown(t.Context(), l, "the provider did not answer: žluťoučký", long))
	rec := s.get(t, r.Key)
	if rec.State != idempotency.Unknown || rec.Reason != "the provider did not answer: žluťoučký" ||
		rec.LeaseLeft > 0 || string(rec.Input) != string(r.Input) {
		t.Errorf("%+v", rec)
	}
	if got := s.claim(t, r, rand.Text(), long, false); got.Won || got.Record.Reason != rec.Reason {
		t.Errorf("%+v", got)
	}
}

// fencingLateWriter: every write of an owner that lost its key is refused, by fence and by token.
func fencingLateWriter(t *testing.T, s *suite) {
	r := s.fresh()
	old := s.claimLapsed(t, r)
	now := s.claim(t, r, rand.Text(), long, true)
	if !now.Won {
		t.Fatalf("%+v", now)
	}
	mixed := []store.Lease{
		old,
		{Key: r.Key, Fence: now.Lease.Fence, Token: old.Token},
		{Key: r.Key, Fence: old.Fence, Token: now.Lease.Token},
	}
	for _, l := range mixed {
		for _, call := range []string{
			"Extend", "Save", "Finish", "Finish_failure", "Release", "MarkUnknown",
			"Postpone", "Postpone_stuck",
		} {
			wantLost(t, call, s.write(t, l, call))
		}
	}
	rec := s.get(t, r.Key)
	wantState(t, rec, idempotency.InProgress)
	if rec.Fence != now.Lease.Fence || rec.Progress.Stage != idempotency.Received {
		t.Errorf("%+v", rec)
	}
	s.finish(t, now.Lease, result("the new owner's"), idempotency.Retention{})
	wantLost(t, "finish", s.Store.Finish(t.Context(), old, result("late"), idempotency.Retention{}))
	if rec := s.get(t, r.Key); !sameResult(rec.Result, result("the new owner's")) {
		t.Errorf("%+v", rec)
	}
}
