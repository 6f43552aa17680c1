package main

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/relay"
)

// TestRolesMayReadTheFigures: the roles of relays and workers are enough for every figure that is read from the
// database. A metric that only a superuser can read would be missed the day it is needed.
func TestRolesMayReadTheFigures(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	r, err := relay.New(h.pool(t, "relay"), new(outboxtest.MemoryPublisher), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Sample(t.Context())
	if err != nil || s.XminAge < 0 || s.OldestTransaction < 0 {
		t.Errorf("%+v, %v", s, err)
	}
	// What nobody granted costs only what needs it.
	h.Exec(t, "revoke all on pg_prepared_xacts from public")
	if s, err := r.Sample(t.Context()); err != nil || s.XminAge != -1 || s.OldestTransaction != -1 {
		t.Errorf("without a look at prepared transactions: %+v, %v", s, err)
	}
	in, err := inbox.New(h.pool(t, "inbox"), "ledger", inbox.Config{Window: 24 * time.Hour, AllowShortWindow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Sample(t.Context()); err != nil {
		t.Error(err)
	}
}
