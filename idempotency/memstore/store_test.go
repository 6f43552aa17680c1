package memstore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
)

// TestMemory_GoesByTheClockOfItsBubble: synctest turns the store's clock, so that days pass in no time.
func TestMemory_GoesByTheClockOfItsBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		r := idempotency.Request{Key: idempotency.Key{Operation: "op", Value: "k"}}
		got, err := m.Claim(t.Context(), r, store.ClaimOptions{Token: "a", Lease: time.Minute})
		if err != nil || !got.Won {
			t.Fatal(got, err)
		}
		pass := func(d time.Duration) { <-time.After(d) }
		pass(59 * time.Second)
		if rec, _, _ := m.Get(t.Context(), r.Key); rec.LeaseLeft != time.Second || rec.Age != 59*time.Second {
			t.Fatalf("%+v", rec)
		}
		pass(time.Second)
		again, err := m.Claim(t.Context(), r, store.ClaimOptions{Token: "b", Lease: time.Minute})
		if err != nil || again.Won || again.Record.State != idempotency.Unknown {
			t.Fatal(again, err)
		}
		if err := m.Finish(t.Context(), got.Lease, idempotency.Result{Code: 201, Body: []byte("x")},
			idempotency.Retention{}); err != nil {
			t.Fatal(err)
		}
		pass(24 * time.Hour)
		if rec, _, _ := m.Get(t.Context(), r.Key); rec.State != idempotency.Expired || rec.Result.Body != nil ||
			rec.Result.Code != 201 {
			t.Fatalf("%+v", rec)
		}
		pass(48 * time.Hour)
		if rec, there, _ := m.Get(t.Context(), r.Key); there {
			t.Fatalf("%+v", rec)
		}
		if err := m.Extend(t.Context(), got.Lease, time.Minute); !errors.Is(err, store.ErrLeaseLost) {
			t.Fatal(err)
		}
	})
}

func TestRetention_Terms(t *testing.T) {
	t.Parallel()
	const h = time.Hour
	for _, c := range []struct{ in, want idempotency.Retention }{
		{idempotency.Retention{}, idempotency.Retention{Body: 24 * h, Tombstone: 72 * h}},
		{idempotency.Retention{Body: 100 * h}, idempotency.Retention{Body: 100 * h, Tombstone: 100 * h}},
		{idempotency.Retention{Tombstone: h}, idempotency.Retention{Body: 24 * h, Tombstone: 24 * h}},
		{idempotency.Retention{Body: -5}, idempotency.Retention{Body: 72 * h, Tombstone: 72 * h}},
		{idempotency.Retention{Tombstone: -5}, idempotency.Retention{Body: 24 * h, Tombstone: -1}},
		{idempotency.Retention{Body: -5, Tombstone: -5}, idempotency.Retention{Body: -1, Tombstone: -1}},
	} {
		if body, tomb := c.in.Terms(); body != c.want.Body || tomb != c.want.Tombstone {
			t.Errorf("%+v: %v %v", c.in, body, tomb)
		}
	}
}
