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

// TestMemory_Clock: leases and retentions end by the clock, which synctest controls.
func TestMemory_Clock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New(memstore.Config{})
		r := idempotency.Request{Key: idempotency.Key{Operation: "op", Value: "k"}}
		got, err := m.Claim(t.Context(), r, store.ClaimOptions{Token: "a", Lease: time.Minute})
		if err != nil || !got.Won {
			t.Fatal(got, err)
		}
		advance := func(d time.Duration) { <-time.After(d) }
		advance(59 * time.Second)
		if rec, _, _ := m.Get(t.Context(), r.Key); rec.LeaseLeft != time.Second || rec.Age != 59*time.Second {
			t.Fatalf("%+v", rec)
		}
		advance(time.Second)
		again, err := m.Claim(t.Context(), r, store.ClaimOptions{Token: "b", Lease: time.Minute})
		if err != nil || again.Won || again.Record.State != idempotency.Unknown {
			t.Fatal(again, err)
		}
		if err := m.Finish(t.Context(), got.Lease, idempotency.Result{Code: 201, Body: []byte("x")},
			idempotency.Retention{}); err != nil {
			t.Fatal(err)
		}
		advance(24 * time.Hour)
		if rec, _, _ := m.Get(t.Context(), r.Key); rec.State != idempotency.Expired || rec.Result.Body != nil ||
			rec.Result.Code != 201 {
			t.Fatalf("%+v", rec)
		}
		advance(48 * time.Hour)
		if rec, found, _ := m.Get(t.Context(), r.Key); found {
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
