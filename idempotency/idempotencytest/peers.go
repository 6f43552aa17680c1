package idempotencytest

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// peers are bugs of other systems' stores, named by their issues.
func peers() []testCase {
	return []testCase{
		{"Peer_PowertoolsTS5714_OrphanIsTakenOverOnce", false, orphanIsTakenOverOnce},
		{"Peer_PowertoolsTS5678_OrphanBecomesUnknownOnce", false, orphanBecomesUnknownOnce},
		{"Peer_PowertoolsPy8386_DBOSJava491_LiveOwnerKeepsKey", false, liveOwnerKeepsKey},
		{"Peer_PowertoolsPy8049_EndedLeaseIsNotReleased", false, endedLeaseIsNotReleased},
		{"Peer_PowertoolsPy4759_ZeroIsNotUnset", false, zeroIsNotUnset},
		{"Peer_PowertoolsTS2048_MismatchHasFirstState", false, mismatchHasFirstState},
		{"Peer_River1302_RecovererKeepsFinished", false, recovererKeepsFinished},
		{
			"Peer_AWSSDKJava2667_GitRemoteS3_67_SREBot1495_GoRedis2985_OwnSuccessIsRecognised", false,
			ownSuccessIsRecognised,
		},
		{"Peer_Devlink1195_773_Fiber_TenantsAndOperationsDiffer", false, tenantsAndOperationsDiffer},
		{"Peer_Temporal487_TombstonesOutliveBodies", false, tombstonesOutliveBodies},
		{"Peer_DBOSJava226_OneOwnerAtATime", false, oneOwnerAtATime},
	}
}

// client returns one of the store's clients.
func (s *suite) client(i int) store.Store {
	if i %= len(s.Others) + 1; i > 0 {
		return s.Others[i-1]
	}
	return s.Store
}

// race claims a key concurrently, and returns the results.
func (s *suite) race(t *testing.T, r idempotency.Request, n int, rerun bool) (won []store.ClaimResult,
	denied []store.Record,
) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			got, err := s.client(i).Claim(t.Context(), r, store.ClaimOptions{
				Token: rand.Text(), Lease: long,
				Rerun: rerun,
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Errorf("claim: %v", err)
			case got.Won:
				won = append(won, got)
			default:
				denied = append(denied, got.Record)
			}
		})
	}
	close(begin)
	wg.Wait()
	return won, denied
}

// orphanIsTakenOverOnce: read, decision and write are atomic, or two claims take over the same key.
func orphanIsTakenOverOnce(t *testing.T, s *suite) {
	for range 10 {
		r := s.fresh()
		s.claimLapsed(t, r)
		won, _ := s.race(t, r, 8, true)
		if len(won) != 1 {
			t.Fatalf("%d took the orphan over", len(won))
		}
		if rec := s.get(t, r.Key); rec.State != idempotency.InProgress || rec.Fence != won[0].Lease.Fence {
			t.Fatalf("%+v", rec)
		}
	}
}

func orphanBecomesUnknownOnce(t *testing.T, s *suite) {
	for range 10 {
		r := s.fresh()
		l := s.claimLapsed(t, r)
		won, denied := s.race(t, r, 8, false)
		if len(won) != 0 {
			t.Fatalf("%d took it over, without leave", len(won))
		}
		for _, rec := range denied {
			if rec.State != idempotency.Unknown || rec.Fence != l.Fence {
				t.Fatalf("%+v", rec)
			}
		}
	}
}

func liveOwnerKeepsKey(t *testing.T, s *suite) {
	r := s.fresh()
	l := s.claimNew(t, r)
	won, denied := s.race(t, r, 8, true)
	if got := s.recoverUpTo(t, 10); len(won) != 0 || len(got) != 0 {
		t.Fatalf("taken by %+v, %+v", won, got)
	}
	for _, rec := range denied {
		if rec.State != idempotency.InProgress || rec.LeaseLeft <= 0 {
			t.Errorf("%+v", rec)
		}
	}
	ok(t, "the owner's save", s.Store.Save(t.Context(), l, store.Progress{Stage: idempotency.LocalCreated}))
}

func endedLeaseIsNotReleased(t *testing.T, s *suite) {
	r := s.fresh()
	s.claimLapsed(t, r)
	for range 3 {
		got := s.claim(t, r, rand.Text(), long, false)
		if got.Won {
			t.Fatalf("run again blindly: %+v", got)
		}
		wantState(t, got.Record, idempotency.Unknown)
	}
}

// zeroIsNotUnset: a delay of zero is none, and a lease of zero is an error.
func zeroIsNotUnset(t *testing.T, s *suite) {
	r := s.fresh()
	if _, err := s.Store.Claim(t.Context(), r, store.ClaimOptions{Token: rand.Text()}); err == nil {
		t.Error("a claim without a lease")
	}
	l := s.claimNew(t, r)
	ok(t, "mark unknown", s.Store.MarkUnknown(t.Context(), l, "", 0))
	c := s.recoverOnly(t, r.Key)
	ok(t, "postpone", s.Recoverer.Postpone(t.Context(), c.Lease, "", 0, false))
	s.recoverOnly(t, r.Key)
}

func mismatchHasFirstState(t *testing.T, s *suite) {
	r := s.fresh()
	s.finish(t, s.claimNew(t, r), result("the first one's"), idempotency.Retention{})
	got := s.claim(t, other(r), rand.Text(), long, false)
	if got.Won || got.Record.State != idempotency.Completed || got.Record.Result.Resource != "payment/17" ||
		got.Record.Fingerprint != r.Fingerprint {
		t.Errorf("%+v", got)
	}
}

// recovererKeepsFinished: the condition of a recoverer's query must hold at its write.
func recovererKeepsFinished(t *testing.T, s *suite) {
	for i := range 20 {
		cell := &suite{Harness: s.Harness, op: "op-" + rand.Text()}
		r := cell.fresh()
		l := cell.claimLapsed(t, r)
		var taken []store.ClaimResult
		var finish error
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			taken, err = s.Recoverer.Recover(t.Context(), store.RecoverOptions{
				Limit: 1, Lease: long,
				Token: rand.Text(), Operations: []string{cell.op},
			})
			if err != nil {
				t.Errorf("recover: %v", err)
			}
		})
		wg.Go(func() { finish = s.client(i).Finish(t.Context(), l, result("x"), idempotency.Retention{}) })
		wg.Wait()
		rec := cell.get(t, r.Key)
		if finished := finish == nil; finished == (len(taken) == 1) ||
			finished != (rec.State == idempotency.Completed) {
			t.Fatalf("finish: %v, taken: %+v, the record: %+v", finish, taken, rec)
		}
	}
}

// ownSuccessIsRecognised: a call whose reply was lost is sent again, by the caller or by a driver that retries.
func ownSuccessIsRecognised(t *testing.T, s *suite) {
	claimSentAgain(t, s)
	for i := range 20 {
		r, token := s.fresh(), rand.Text()
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		_, _ = s.Store.Claim(ctx, r, store.ClaimOptions{Token: token, Lease: long})
		cancel()
		got := s.claim(t, r, token, long, false)
		if !got.Won {
			t.Fatalf("its own claim stands in its way: %+v", got)
		}
		if s.claim(t, r, rand.Text(), long, true).Won {
			t.Fatal("and another's does not")
		}
		for _, call := range []string{"Save", "Extend", "MarkUnknown", "MarkUnknown", "Finish", "Finish"} {
			ok(t, call, s.write(t, got.Lease, call))
		}
		ok(t, "finish", s.Store.Finish(t.Context(), got.Lease, result("second"), idempotency.Retention{}))
	}
}

func tenantsAndOperationsDiffer(t *testing.T, s *suite) {
	r := s.fresh()
	s.finish(t, s.claimNew(t, r), result("the first tenant's"), idempotency.Retention{})
	stranger := r
	stranger.Key.Tenant = "another tenant"
	elsewhere := r
	elsewhere.Key.Operation += "-refund"
	for _, r := range []idempotency.Request{stranger, elsewhere} {
		if _, there, err := s.Store.Get(t.Context(), r.Key); err != nil || there {
			t.Errorf("%+v is seen: %v", r.Key, err)
		}
		l := s.claimNew(t, r)
		ok(t, "release", s.Store.Release(t.Context(), l))
	}
	if rec := s.get(t, r.Key); !sameResult(rec.Result, result("the first tenant's")) {
		t.Errorf("%+v", rec)
	}
}

func tombstonesOutliveBodies(t *testing.T, s *suite) {
	r := s.fresh()
	s.arrange(t, r, "expired")
	for _, r := range []idempotency.Request{r, other(r)} {
		if got := s.claim(t, r, rand.Text(), long, true); got.Won || got.Record.State != idempotency.Expired {
			t.Errorf("%+v", got)
		}
	}
}

// oneOwnerAtATime: concurrent claims and recoverers of one key whose leases end at once; after a holder got its fence,
// no holder with a lower one may write.
func oneOwnerAtATime(t *testing.T, s *suite) {
	r := s.fresh()
	var highest atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 15 {
				got, err := s.client(i).Claim(t.Context(), r, store.ClaimOptions{
					Token: rand.Text(), Lease: s.tick(),
					Rerun: true,
				})
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				if !got.Won {
					continue
				}
				seen := highest.Load()
				err = s.client(i).Save(t.Context(), got.Lease, store.Progress{Stage: idempotency.LocalCreated})
				if err == nil && got.Lease.Fence < seen {
					t.Errorf("fence %d wrote after %d was given", got.Lease.Fence, seen)
				}
				for seen = highest.Load(); got.Lease.Fence > seen &&
					!highest.CompareAndSwap(seen, got.Lease.Fence); seen = highest.Load() {
				}
			}
		})
	}
	wg.Wait()
}
