package idempotencytest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// recoveries are the tests on recovery.
func recoveries() []testCase {
	return []testCase{
		{"Recover_ReturnsRecord", false, recoverReturnsRecord},
		{"Recover_LongestOverdueFirst", false, recoverLongestOverdueFirst},
		{"Recover_Grace", false, recoverGrace},
		{"Recover_GraceAfterARetry", false, recoverGraceAfterARetry},
		{"Recover_HasTheClaimsRetention", false, recoverHasTheClaimsRetention},
		{"Recover_DueNow", false, recoverDueNow},
		{"Recover_OnlyListedOperations", true, recoverOnlyListedOperations},
		{"Recover_RecoverersLeaseEnds_DBOSPy716", false, recoverRecoverersLeaseEnds},
		{"Recover_WorkersAreDisjoint", false, recoverDisjoint},
		{"Postpone_StuckIsNotRecovered", false, postponeStuckIsNotRecovered},
		{"Postpone_SentAgain", false, postponeSentAgain},
		{"Stuck_IsListedAndClaimed", true, stuckIsListedAndClaimed},
	}
}

func recoverReturnsRecord(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	p := store.Progress{
		Stage: idempotency.ProviderRequestSent,
		Steps: []store.Step{{Name: "charge", State: store.StepSent, Key: "k"}},
	}
	ok(t, "save", s.Store.Save(t.Context(), l, p))
	ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "timed out", 0))
	rec := s.recoverOnly(t, r.Key).Record
	if rec.Fingerprint != r.Fingerprint || string(rec.Input) != string(r.Input) || !sameProgress(rec.Progress, p) ||
		rec.Attempts != 1 ||
		rec.Reason != "timed out" || rec.Fence <= l.Fence || rec.LeaseLeft <= 0 || rec.Age < 0 {
		t.Errorf("%+v", rec)
	}
}

func recoverLongestOverdueFirst(t *testing.T, s *suite) {
	var want, got []string
	for i := range 6 {
		r := s.command(fmt.Sprint("key-", i), "pay 100")
		switch i % 3 {
		case 0:
			s.claimLapsed(t, r)
		case 1:
			s.arrange(t, r, "due")
		case 2:
			l := s.claimNew(t, r)
			ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "", s.tick()))
		}
		// The next one's lease begins after this one's has ended.
		s.claimLapsed(t, (&suite{Harness: s.Harness, op: s.op + "-between"}).fresh())
		want = append(want, r.Key.Value)
	}
	await(t, "all six", func() bool {
		for _, c := range s.recoverUpTo(t, 2) {
			got = append(got, c.Record.Key.Value)
		}
		return len(got) >= 6
	})
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func recoverGrace(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimLapsed(t, r)
	if got := s.recover(t, store.RecoverOptions{Limit: 10, Lease: long, Grace: long}); len(got) != 0 {
		t.Fatalf("within its grace: %+v", got)
	}
	wantState(t, s.get(t, r.Key), idempotency.InProgress)
	ok(t, "extend", s.Store.Extend(t.Context(), l, s.tick()))
	s.awaitLeaseEnd(t, r.Key)
	if got := s.recoverUpTo(t, 10); len(got) != 1 {
		t.Fatalf("without grace: %+v", got)
	}
}

// recoverGraceAfterARetry: the grace holds whoever noticed that the lease has ended, and for recoverers, who send
// requests too.
func recoverGraceAfterARetry(t *testing.T, s *suite) {
	r := s.fresh()
	s.claimLapsed(t, r)
	if got := s.claim(t, r, rand.Text(), long, false); got.Won {
		t.Fatalf("%+v", got)
	}
	wantState(t, s.get(t, r.Key), idempotency.Unknown)
	for _, of := range []string{"an owner", "a recoverer"} {
		if got := s.recover(t, store.RecoverOptions{Limit: 10, Lease: long, Grace: long}); len(got) != 0 {
			t.Errorf("within the grace of %s: %+v", of, got)
		}
		if got := s.recover(t, store.RecoverOptions{Limit: 10, Lease: s.tick()}); len(got) != 1 {
			t.Fatalf("without the grace of %s: %+v", of, got)
		}
		s.awaitLeaseEnd(t, r.Key)
	}
}

// recoverHasTheClaimsRetention: whoever finishes a key knows what the service that claimed it has promised.
func recoverHasTheClaimsRetention(t *testing.T, s *suite) {
	day := 24 * time.Hour
	month := idempotency.Retention{Body: 2 * day, Tombstone: 30 * day}
	for _, c := range []struct{ keep, want idempotency.Retention }{
		{idempotency.Retention{}, idempotency.Retention{Body: day, Tombstone: 3 * day}},
		{month, month},
		{idempotency.Retention{Body: -1, Tombstone: -1}, idempotency.Retention{Body: -1, Tombstone: -1}},
	} {
		r, opt := s.fresh(), store.ClaimOptions{Token: rand.Text(), Lease: long, Keep: c.keep}
		claimed, err := s.Store.Claim(t.Context(), r, opt)
		ok(t, "claim", err)
		again, err := s.Store.Claim(t.Context(), r, opt)
		ok(t, "claim again", err)
		ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), again.Lease, "", 0))
		recovered := s.recoverOnly(t, r.Key)
		for at, rec := range map[string]store.Record{
			"claimed": claimed.Record, "claimed again": again.Record, "recovered": recovered.Record,
			"read": s.get(t, r.Key),
		} {
			if rec.Keep != c.want {
				t.Errorf("%s, of %+v: %+v, want %+v", at, c.keep, rec.Keep, c.want)
			}
		}
		s.finish(t, recovered.Lease, result("done"), recovered.Record.Keep)
	}
}

func recoverDueNow(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "", long))
	if got := s.recoverUpTo(t, 10); len(got) != 0 {
		t.Fatalf("before it was due: %+v", got)
	}
	ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "", 0))
	for i := 1; i <= 3; i++ {
		c := s.recoverOnly(t, r.Key)
		if c.Record.Attempts != i {
			t.Errorf("attempts: %d, want %d", c.Record.Attempts, i)
		}
		ok(t, "postpone", s.Recoverer.Postpone(t.Context(), c.Lease, fmt.Sprint("asked ", i), 0, false))
		if rec := s.get(t, r.Key); rec.Reason != fmt.Sprint("asked ", i) || rec.State != idempotency.Unknown ||
			rec.LeaseLeft > 0 {
			t.Errorf("%+v", rec)
		}
	}
}

func recoverOnlyListedOperations(t *testing.T, s *suite) {
	var keys []idempotency.Key
	for _, op := range []string{"a", "b", "c"} {
		r := s.fresh()
		r.Key.Operation = op
		s.claimLapsed(t, r)
		keys = append(keys, r.Key)
	}
	take := func(ops []string) (got []string) {
		found, err := s.Recoverer.Recover(t.Context(), store.RecoverOptions{
			Limit: 10, Lease: long, Token: rand.Text(),
			Operations: ops,
		})
		ok(t, "recover", err)
		for _, c := range found {
			got = append(got, c.Record.Key.Operation)
		}
		slices.Sort(got)
		return got
	}
	if got := take([]string{}); len(got) != 0 {
		t.Errorf("of no operation: %v", got)
	}
	if got := take([]string{"b", "none"}); !slices.Equal(got, []string{"b"}) {
		t.Errorf("of b: %v", got)
	}
	if got := take(nil); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("of all: %v", got)
	}
	for _, k := range keys {
		wantState(t, s.get(t, k), idempotency.Unknown)
	}
}

func recoverRecoverersLeaseEnds(t *testing.T, s *suite) {
	r := s.fresh()
	s.claimLapsed(t, r)
	first := s.recover(t, store.RecoverOptions{Limit: 1, Lease: s.tick()})
	if len(first) != 1 {
		t.Fatalf("%+v", first)
	}
	s.awaitLeaseEnd(t, r.Key)
	wantLost(t, "save", s.Store.Save(t.Context(), first[0].Lease, store.Progress{}))
	second := s.recoverOnly(t, r.Key)
	if second.Record.Attempts != 2 || second.Lease.Fence <= first[0].Lease.Fence {
		t.Errorf("%+v", second)
	}
	for _, call := range []string{"Extend", "Save", "Finish", "Release", "MarkUnknown", "Postpone"} {
		wantLost(t, call, s.write(t, first[0].Lease, call))
	}
	if got := s.claim(t, r, rand.Text(), long, true); got.Won {
		t.Errorf("taken from a recoverer whose lease runs: %+v", got)
	}
}

// recoverDisjoint: two workers, and then four, never get the same key.
func recoverDisjoint(t *testing.T, s *suite) {
	const keys = 40
	for range keys {
		l := s.claimNew(t, s.fresh())
		ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "", 0))
	}
	var mu sync.Mutex
	seen := map[idempotency.Key]int{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				got, err := s.Recoverer.Recover(t.Context(), store.RecoverOptions{
					Limit: 3, Lease: long,
					Token: rand.Text(), Operations: []string{s.op},
				})
				mu.Lock()
				if err != nil {
					t.Errorf("recover: %v", err)
				}
				for _, c := range got {
					seen[c.Record.Key]++
				}
				all := len(seen) == keys
				mu.Unlock()
				if all || err != nil || t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	for k, n := range seen {
		if n != 1 {
			t.Errorf("%v was given to %d", k, n)
		}
	}
}

func postponeStuckIsNotRecovered(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.recovered(t, r).Lease
	ok(t, "postpone", s.Recoverer.Postpone(t.Context(), l, "the provider knows nothing", 0, true))
	for range 2 {
		if got := s.recoverUpTo(t, 10); len(got) != 0 {
			t.Fatalf("recovered %+v", got)
		}
		if got := s.claim(t, r, rand.Text(), long, false); got.Won || !got.Record.Stuck ||
			got.Record.Reason != "the provider knows nothing" {
			t.Fatalf("%+v", got)
		}
	}
	s.finish(t, l, result("a person found out"), idempotency.Retention{})
	if rec := s.get(t, r.Key); rec.State != idempotency.Completed || rec.Stuck || rec.Reason != "" {
		t.Errorf("%+v", rec)
	}
}

func postponeSentAgain(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.recovered(t, r).Lease
	for range 2 {
		ok(t, "postpone", s.Recoverer.Postpone(t.Context(), l, "not known yet", long, false))
	}
	if got := s.recoverUpTo(t, 10); len(got) != 0 {
		t.Errorf("before it was due: %+v", got)
	}
	ok(t, "postpone", s.Recoverer.Postpone(t.Context(), l, "not known yet", 0, false))
	c := s.recoverOnly(t, r.Key)
	wantLost(t, "postpone", s.Recoverer.Postpone(t.Context(), l, "late", 0, true))
	if rec := s.get(t, r.Key); rec.Stuck || rec.Fence != c.Lease.Fence {
		t.Errorf("%+v", rec)
	}
}

// stuckIsListedAndClaimed: a Lister lists stuck operations, and a person claims and ends them in each way.
func stuckIsListedAndClaimed(t *testing.T, s *suite) {
	lister, has := s.Store.(store.Lister)
	if !has {
		t.Skip("it is no Lister")
	}
	keys := map[string]idempotency.Request{}
	for _, name := range []string{"happened", "did not", "ask again", "not theirs"} {
		keys[name] = s.command(name, "pay 100")
		l := s.claimNew(t, keys[name])
		ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "", 0))
	}
	for _, c := range s.recoverUpTo(t, 10) {
		stuck := c.Record.Key.Value != "not theirs"
		ok(t, "postpone", s.Recoverer.Postpone(t.Context(), c.Lease, "asked in vain", long, stuck))
	}
	await(t, "three that are a person's", func() bool {
		got, err := lister.Stuck(t.Context(), 10)
		ok(t, "stuck", err)
		for _, rec := range got {
			if rec.Key.Value == "not theirs" || !rec.Stuck || rec.Reason != "asked in vain" ||
				string(rec.Input) != string(keys[rec.Key.Value].Input) {
				t.Fatalf("%+v", rec)
			}
		}
		return len(got) == 3
	})
	for limit, want := range map[int]int{-1: 0, 0: 0, 2: 2} {
		if got, err := lister.Stuck(t.Context(), limit); err != nil || len(got) != want {
			t.Errorf("%d of at most %d, %v", len(got), limit, err)
		}
	}
	take := func(name string) store.ClaimResult {
		c, err := store.ClaimStuck(t.Context(), s.Store, keys[name].Key, long)
		ok(t, name, err)
		if _, err := store.ClaimStuck(t.Context(), s.Store, keys[name].Key, long); !errors.Is(err, store.ErrNotStuck) {
			t.Errorf("%s, taken twice: %v", name, err)
		}
		return c
	}
	ok(t, "finish", s.Store.Finish(t.Context(), take("happened").Lease, result("a person found out"),
		idempotency.Retention{}))
	ok(t, "release", s.Store.Release(t.Context(), take("did not").Lease))
	ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), take("ask again").Lease, "the provider is back", 0))
	if _, err := store.ClaimStuck(t.Context(), s.Store, keys["not theirs"].Key, long); !errors.Is(err,
		store.ErrNotStuck) {
		t.Errorf("what recovery has: %v", err)
	}
	wantState(t, s.get(t, keys["happened"].Key), idempotency.Completed)
	s.claimNew(t, keys["did not"])
	s.recoverOnly(t, keys["ask again"].Key)
	await(t, "nothing is a person's any more", func() bool {
		got, err := lister.Stuck(t.Context(), 10)
		ok(t, "stuck", err)
		return len(got) == 0
	})
}
