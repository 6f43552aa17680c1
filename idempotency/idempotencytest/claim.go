package idempotencytest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// claims are the tests on Claim and Get.
func claims() []testCase {
	return []testCase{
		{"Matrix", false, runMatrix},
		{"Claim_NewRecord", false, claimNewRecord},
		{"Claim_SentAgain", false, claimSentAgain},
		{"Claim_RequiredArguments", false, claimRequiredArguments},
		{"Claim_FenceRisesAfterRelease", false, claimFenceRisesAfterRelease},
		{"Claim_TakeOverKeepsProgress", false, claimTakeOverKeepsProgress},
		{"Claim_TakeOverOfStuckKey", false, claimTakeOverOfStuckKey},
		{"Claim_OlderFingerprint", false, claimOlderFingerprint},
		{"Claim_MismatchInEveryState_PowertoolsPy3821_TS1502_Java2260", false, claimMismatchInEveryState},
		{"Claim_CancelledContext", false, claimCancelledContext},
		{"Claim_OverdueTombstone", false, claimOverdueTombstone},
	}
}

func claimNewRecord(t *testing.T, s *suite) {
	r := s.fresh()
	if rec, there, err := s.Store.Get(t.Context(), r.Key); err != nil || there {
		t.Fatalf("before: %+v, %v", rec, err)
	}
	got := s.claim(t, r, rand.Text(), long, false)
	for _, rec := range []store.Record{got.Record, s.get(t, r.Key)} {
		if rec.State != idempotency.InProgress || rec.Fingerprint != r.Fingerprint ||
			string(rec.Input) != string(r.Input) || rec.Fence < 1 ||
			rec.LeaseLeft <= 0 || rec.LeaseLeft > long || rec.Age < 0 || rec.Attempts != 0 || rec.Stuck ||
			rec.Reason != "" ||
			rec.Progress.Stage != idempotency.Received || len(rec.Progress.Steps) != 0 ||
			!sameResult(rec.Result, idempotency.Result{}) {
			t.Errorf("%+v", rec)
		}
	}
}

// claimSentAgain: a claim whose reply was lost is won when it is sent again.
func claimSentAgain(t *testing.T, s *suite) {
	r, token := s.fresh(), rand.Text()
	first := s.claim(t, r, token, s.tick(), false)
	for range 2 {
		s.awaitLeaseEnd(t, r.Key)
		again := s.claim(t, r, token, s.tick(), false)
		if !again.Won || again.Lease != first.Lease {
			t.Fatalf("%+v after %+v", again, first)
		}
	}
	if again := s.claim(t, r, token, long, false); again.Record.LeaseLeft <= s.tick() {
		t.Errorf("not a whole lease: %v", again.Record.LeaseLeft)
	}
	ok(t, "save", s.Store.Save(t.Context(), first.Lease, store.Progress{Stage: idempotency.Received}))
}

func claimRequiredArguments(t *testing.T, s *suite) {
	good := s.fresh()
	for name, bad := range map[string]struct {
		value, token string
		lease        int
	}{
		"an empty key":     {"", "t", 1},
		"a line in a key":  {"a\nb", "t", 1},
		"no token":         {good.Key.Value, "", 1},
		"no lease":         {good.Key.Value, "t", 0},
		"a negative lease": {good.Key.Value, "t", -1},
	} {
		r := good
		r.Key.Value = bad.value
		got, err := s.Store.Claim(t.Context(), r,
			store.ClaimOptions{Token: bad.token, Lease: time.Duration(bad.lease) * long})
		if err == nil || got.Won {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if bad.value != good.Key.Value && !errors.Is(err, idempotency.ErrInvalidKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, there, err := s.Store.Get(t.Context(), good.Key); err != nil || there {
		t.Errorf("something was recorded: %v", err)
	}
	l := s.claimNew(t, good)
	if err := s.Store.Extend(t.Context(), l, 0); err == nil || errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("extend by zero: %v", err)
	}
	for _, opt := range []store.RecoverOptions{
		{Lease: long, Token: "t"},
		{Limit: -1, Lease: long, Token: "t"},
		{Limit: 1, Token: "t"},
		{Limit: 1, Lease: long},
	} {
		opt.Operations = []string{s.op}
		if got, err := s.Recoverer.Recover(t.Context(), opt); err == nil {
			t.Errorf("recover %+v: %v", opt, got)
		}
	}
}

// claimFenceRisesAfterRelease: an effect that refuses lower fences must refuse the owner from before the release.
func claimFenceRisesAfterRelease(t *testing.T, s *suite) {
	r := s.fresh()
	last := int64(0)
	for range 5 {
		l := s.claimNew(t, r)
		if l.Fence <= last {
			t.Fatalf("fence %d after %d", l.Fence, last)
		}
		last = l.Fence
		ok(t, "release", s.Store.Release(t.Context(), l))
	}
	l := s.claimNew(t, r)
	s.finishAndForget(t, l)
	if next := s.claimNew(t, r); next.Fence <= l.Fence {
		t.Fatalf("fence %d after %d", next.Fence, l.Fence)
	}
}

func claimTakeOverKeepsProgress(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	p := store.Progress{Stage: idempotency.ProviderRequestSent, Steps: []store.Step{
		{Name: "local", State: store.StepDone, Data: []byte{0, 255}}, {
			Name: "charge", State: store.StepSent,
			Key: "provider_payment_17",
		},
	}}
	ok(t, "save", s.Store.Save(t.Context(), l, p))
	ok(t, "extend", s.Store.Extend(t.Context(), l, s.tick()))
	s.awaitLeaseEnd(t, r.Key)
	again := r
	again.Input = []byte("another encoding of the same command")
	got := s.claim(t, again, rand.Text(), long, true)
	if !got.Won || got.Lease.Fence <= l.Fence || !sameProgress(got.Record.Progress, p) ||
		string(got.Record.Input) != string(r.Input) {
		t.Fatalf("%+v", got)
	}
	wantLost(t, "the old owner's save", s.Store.Save(t.Context(), l, store.Progress{}))
	if rec := s.get(t, r.Key); !sameProgress(rec.Progress, p) {
		t.Errorf("%+v", rec)
	}
}

// claimTakeOverOfStuckKey: as a tool for operators does.
func claimTakeOverOfStuckKey(t *testing.T, s *suite) {
	r := s.fresh()
	s.arrange(t, r, "stuck")
	if got := s.claim(t, r, rand.Text(), long, false); got.Won || !got.Record.Stuck {
		t.Fatalf("%+v", got)
	}
	rec := s.get(t, r.Key)
	got := s.claim(t, idempotency.Request{Key: rec.Key, Fingerprint: rec.Fingerprint}, rand.Text(), s.tick(), true)
	if !got.Won || got.Record.Stuck {
		t.Fatalf("%+v", got)
	}
	s.awaitLeaseEnd(t, r.Key)
	if c := s.recoverOnly(t, r.Key); c.Record.Attempts != 2 {
		t.Errorf("attempts: %d", c.Record.Attempts)
	}
}

func claimOlderFingerprint(t *testing.T, s *suite) {
	old := s.fresh()
	s.finish(t, s.claimNew(t, old), result("x"), idempotency.Retention{})
	r := old
	r.Fingerprint.Version = 2
	if r.Matches(old.Fingerprint) {
		t.Fatal("another version matches")
	}
	r.Older = []idempotency.Fingerprint{old.Fingerprint}
	got := s.claim(t, r, rand.Text(), long, false)
	if got.Won || got.Record.Fingerprint != old.Fingerprint || !r.Matches(got.Record.Fingerprint) {
		t.Errorf("%+v", got)
	}
	// A request in a newer version takes an ended lease over, and the record keeps its version.
	lapsed := s.fresh()
	s.claimLapsed(t, lapsed)
	r.Key, r.Fingerprint.Sum, r.Older = lapsed.Key, lapsed.Fingerprint.Sum, []idempotency.Fingerprint{
		{Version: 7},
		lapsed.Fingerprint,
	}
	if got := s.claim(t, r, rand.Text(), long, true); !got.Won || got.Record.Fingerprint != lapsed.Fingerprint {
		t.Errorf("%+v", got)
	}
}

// claimMismatchInEveryState: in each state of the first command, another one with its key gets only the state. (The
// matrix tests that it changes nothing.)
func claimMismatchInEveryState(t *testing.T, s *suite) {
	for _, situation := range []string{
		"leased", "lapsed", "waiting", "due", "recovering", "stuck", "done", "refused",
		"stale", "expired",
	} {
		cell := &suite{Harness: s.Harness, op: "op-" + rand.Text()}
		r := cell.fresh()
		l := cell.arrange(t, r, situation)
		for _, rerun := range []bool{false, true} {
			for _, token := range []string{rand.Text(), l.Token} {
				got := cell.claim(t, other(r), token, long, rerun)
				if got.Won || got.Record.Fingerprint != r.Fingerprint || other(r).Matches(got.Record.Fingerprint) {
					t.Errorf("%s: %+v", situation, got)
				}
			}
		}
	}
}

// claimCancelledContext: a claim that was cancelled before it was sent did not happen, or is recognised by its token.
func claimCancelledContext(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, token := s.fresh(), rand.Text()
	if got, err := s.Store.Claim(ctx, r, store.ClaimOptions{Token: token, Lease: long}); err == nil || got.Won {
		t.Fatalf("%+v, %v", got, err)
	}
	if !s.claim(t, r, token, long, false).Won {
		t.Error("the claim is not found by its token")
	}
}

func claimOverdueTombstone(t *testing.T, s *suite) {
	for _, again := range []func(idempotency.Request) idempotency.Request{
		func(r idempotency.Request) idempotency.Request { return r }, other,
	} {
		r := s.fresh()
		s.finishAndForget(t, s.claimNew(t, r))
		got := s.claim(t, again(r), rand.Text(), long, false)
		if !got.Won || got.Record.Fingerprint != again(r).Fingerprint || got.Record.Result.Resource != "" ||
			string(got.Record.Input) != string(r.Input) {
			t.Errorf("%+v", got)
		}
	}
}

// sameProgress compares a stored progress with the given one.
func sameProgress(a, b store.Progress) bool {
	return a.Stage == b.Stage && slices.EqualFunc(a.Steps, b.Steps, func(x, y store.Step) bool {
		return x.Name == y.Name && x.State == y.State && x.Key == y.Key && string(x.Data) == string(y.Data)
	})
}
