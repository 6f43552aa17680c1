package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

type acking struct{}

func (acking) Publish(_ context.Context, events []event.Event) []error {
	return make([]error, len(events))
}

// TestRoleRelayReadsTheWAL: the relays' role with REPLICATION suffices to read the WAL; without REPLICATION the relay
// publishes from the table and reports why.
func TestRoleRelayReadsTheWAL(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "setup"); code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	run := func() (*relay.Relay, func()) {
		r, err := relay.New(h.pool(t, "relay"), acking{}, relay.Config{
			Feed: relay.FeedWAL, Lease: time.Minute,
			Logger: slog.New(slog.DiscardHandler),
		})
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
		h.Exec(t,
			`insert into outbox_event (topic, key, type, payload) select 't', 'k' || g, 'T', '{}'
				from generate_series(1, 100) g`)
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
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "drop"); code == codeOK ||
		!strings.Contains(stderr, "reads the replication slot") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	code, out, _ := command(t, environment{"RELAY_DATABASE_URL": h.url(t, h.user("relay"))}, "status")
	if code != codeOK || !strings.Contains(out, "32 of 32") {
		t.Errorf("exit code %d: %s", code, out)
	}
	stop()
	awaitUnread(t, h.DB)
	code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.url(t, h.user("relay"))}, "wal", "drop")
	if code == codeOK || !strings.Contains(stderr, "the replication slot is dropped; the publication is left") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if n := pgtest.One[int](t, h.DB,
		`select count(*) from pg_replication_slots where database = current_database()`); n != 0 {
		t.Errorf("%d slots are left", n)
	}
	h.dropAtEnd(t, "owner")
	h.Exec(t, "create role "+h.user("owner")+" login")
	h.Exec(t, "do $$ begin execute format('alter publication %I owner to "+h.user("owner")+"', (select pubname from "+
		"pg_publication)); end $$")
	h.Exec(t, "grant "+h.prefix+"_relay to "+h.user("owner"))
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.url(t, h.user("owner"))}, "wal",
		"drop"); code != codeOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestWALOfAHiddenState: a relay that may not read the state of the slot publishes from the table, and says why.
func TestWALOfAHiddenState(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	if code, _, stderr := command(t, environment{"RELAY_DATABASE_URL": h.URL}, "wal", "setup"); code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	h.Exec(t, "alter role "+h.user("relay")+" replication")
	h.Exec(t, "revoke select on pg_replication_slots from public")
	r, err := relay.New(h.pool(t, "relay"), acking{}, relay.Config{
		Feed: relay.FeedWAL, Lease: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	h.Exec(t, `insert into outbox_event (topic, key, type, payload) select 't', 'k' || g, 'T', '{}'
		from generate_series(1, 100) g`)
	pgtest.AwaitSQL(t, h.DB, `select not exists (select from outbox_event)`)
	if err := r.WALUnavailable(); err == nil || !strings.Contains(err.Error(), "pg_replication_slots") {
		t.Errorf("%v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
