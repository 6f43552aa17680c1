package doctor

import (
	"context"
	"log/slog"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// nowhere acks everything.
type nowhere struct{}

func (nowhere) Publish(_ context.Context, events []event.Event) []error {
	return make([]error, len(events))
}

// TestSlot: what is told of the replication slot: nothing before there is one, who reads it, that nobody does, and that
// it is gone.
func TestSlot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	examine := func() []Finding { return Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}) }
	expect(t, examine(), "slot", "", "")
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, examine(), "slot", "", "")
	r, err := relay.New(db.Pool, nowhere{}, relay.Config{
		Schema: db.Schema, Feed: relay.FeedWAL,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		_, _ = operator.DropWAL(context.Background(), db.Pool, db.Schema)
	})
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_streamed`)
	if severity, text := worst(examine(), "slot"); severity == Fail || severity == "" {
		t.Errorf("while it is read: %q %s", severity, text)
	}
	expect(t, examine(), "slot", Warn, "32 of 32 lanes come from it")
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expect(t, examine(), "slot", Warn, "0 of 32 lanes")
	pgtest.AwaitSQL(t, db, `select not active from pg_replication_slots where slot_name = $1`, slot)
	db.Exec(t, `select pg_drop_replication_slot($1)`, slot)
	expect(t, examine(), "slot", Warn, "is missing")
	if _, err := operator.DropWAL(t.Context(), db.Pool, db.Schema); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(), "slot", "", "")
}
