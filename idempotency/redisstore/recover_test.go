package redisstore_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestRecover_OwnSuccessIsNotLost: the client retries a claim of recovery whose reply was lost. The recoverer gets the
// key at once, and not after the end of its own lease.
func TestRecover_OwnSuccessIsNotLost(t *testing.T) {
	t.Parallel()
	cut, client, s, behind := retryingStore(t)
	due := func(name string) idempotency.Request {
		r := request(name, "")
		if err := behind.MarkUnknown(t.Context(), claimNew(t, behind, r), "", 0); err != nil {
			t.Fatal(err)
		}
		return r
	}
	options := store.RecoverOptions{Limit: 10, Lease: time.Minute, Token: "r"}
	due("warm")
	if got, err := s.Recover(t.Context(), options); err != nil || len(got) != 1 { // the script is known
		t.Fatalf("%+v %v", got, err)
	}

	r, heals := due("k"), make(chan func(), 1)
	client.AddHook(afterPageHook(func() { heals <- cut.DropReplies(t) }))
	type reply struct {
		taken []store.ClaimResult
		err   error
	}
	replies := make(chan reply, 1)
	go func() {
		got, err := s.Recover(t.Context(), options)
		replies <- reply{got, err}
	}()
	heal := <-heals
	pgtest.Await(t, "the taking's arrival", func() (bool, error) {
		rec, _, err := behind.Get(t.Context(), r.Key)
		return rec.Attempts == 1, err
	})
	heal()
	if got := <-replies; got.err != nil || len(got.taken) != 1 || got.taken[0].Record.Attempts != 1 ||
		got.taken[0].Record.LeaseLeft <= 0 {
		t.Fatalf("%+v", got)
	}
}
