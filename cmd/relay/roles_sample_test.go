package main

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/relay"
)

// TestRolesMayReadTheFigures: the roles of relays and workers suffice for every metric that is read from the database.
// A metric that only a superuser can read would be missing when it is needed.
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
	// A missing right costs only the metric that needs it.
	h.Exec(t, "revoke all on pg_prepared_xacts from public")
	if s, err := r.Sample(t.Context()); err != nil || s.XminAge != -1 || s.OldestTransaction != -1 {
		t.Errorf("without the right to read prepared transactions: %+v, %v", s, err)
	}
	in, err := inbox.New(h.pool(t, "inbox"), "ledger", inbox.Config{Window: 24 * time.Hour, AllowShortWindow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Sample(t.Context()); err != nil {
		t.Error(err)
	}
}
