package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
)

type acking struct{}

func (acking) Publish(_ context.Context, events []event.Event) []error {
	return make([]error, len(events))
}

// TestRoleRelayReadsTheWAL: the relays' role and REPLICATION are enough to read the WAL; without that, the relay publishes from the
// table and says why.
func TestRoleRelayReadsTheWAL(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "setup"); code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	run := func() (*relay.Relay, func()) {
		r, err := relay.New(h.pool(t, "relay"), acking{}, relay.Config{Source: relay.SourceWAL, Lease: 3 * time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		return r, func() {
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	add := func() {
		h.Exec(t, `insert into outbox_event (topic, key, type, payload) select 't', 'k' || g, 'T', '{}' from generate_series(1, 100) g`)
		pgtest.AwaitSQL(t, h.DB, `select not exists (select from outbox_event)`)
	}
	r, stop := run()
	pgtest.Await(t, "the reason", func() (bool, error) {
		err := r.WALUnavailable()
		return err != nil && strings.Contains(err.Error(), "replication"), nil
	})
	add()
	stop()
	h.Exec(t, "alter role "+h.user("relay")+" replication")
	r, stop = run()
	pgtest.AwaitSQL(t, h.DB, `select count(*) = 32 from outbox_streamed`)
	add()
	if err := r.WALUnavailable(); err != nil {
		t.Error(err)
	}
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "drop"); code == codeOK || !strings.Contains(stderr, "reads the replication slot") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	code, out, _ := command(t, environment{"RELAY_DATABASE_URL": h.url(t, h.user("relay"))}, "status")
	if code != codeOK || !strings.Contains(out, "32 of 32") {
		t.Errorf("exit code %d: %s", code, out)
	}
	stop()
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "drop"); code != codeOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestRolesEmit: a producer emits with the grants that outbox.Emit names, and is told of them without; a refused event becomes a row by
// the relay's own role; an operator drops the slot only when nothing is in it, or gives that up.
func TestRolesEmit(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "setup"); code != codeOK {
		t.Fatal(stderr)
	}
	h.Exec(t, "alter role "+h.user("relay")+" replication")
	r, err := relay.New(h.pool(t, "relay"), tooLarge{}, relay.Config{Source: relay.SourceWAL, Emitted: true, Lease: 3 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	pgtest.AwaitSQL(t, h.DB, `select count(*) = 32 from outbox_streamed where emitted = 'open'`)
	producer := h.pool(t, "append")
	emit := func() error {
		return pgx.BeginFunc(t.Context(), producer, func(tx pgx.Tx) error {
			return outbox.Emit(t.Context(), tx, event.Event{Topic: "t", Key: "k", Type: "T"})
		})
	}
	if err := emit(); err == nil || !strings.Contains(err.Error(), "for Emit what it says") {
		t.Errorf("without the grants: %v", err)
	}
	h.Exec(t, "grant select on outbox_streamed, outbox_wal to "+h.user("append"))
	h.Exec(t, "grant usage on sequence outbox_event_id_seq to "+h.user("append"))
	// What docs/security.md takes from everybody. It is the database's own.
	const functions = "function pg_logical_emit_message(boolean, text, text), pg_logical_emit_message(boolean, text, bytea)"
	h.Exec(t, "revoke execute on "+functions+" from public")
	h.Exec(t, "grant execute on "+functions+" to "+h.user("relay"))
	if err := emit(); err == nil {
		t.Error("emitted without the right to")
	}
	h.Exec(t, "grant execute on "+functions+" to "+h.user("append"))
	if err := emit(); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, h.DB, `select count(*) = 1 from outbox_parked`)
	pgtest.AwaitSQL(t, h.DB, `select count(*) = 31 from outbox_streamed`)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "drop"); code == codeOK || !strings.Contains(stderr, "emitted events") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	code, out, _ := command(t, environment{"RELAY_DATABASE_URL": h.url(t, h.user("relay"))}, "status")
	if code != codeOK || !strings.Contains(out, "31 lanes") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "drop", "--lose-emitted"); code != codeOK || !strings.Contains(stderr, "given up") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// tooLarge refuses everything.
type tooLarge struct{}

func (tooLarge) Publish(_ context.Context, events []event.Event) []error {
	out := make([]error, len(events))
	for i := range out {
		out[i] = certain{}
	}
	return out
}

type certain struct{}

func (certain) Error() string  { return "refused" }
func (certain) Rejected() bool { return true }
