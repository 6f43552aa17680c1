package relay_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestP7Proof: what takes events away from a relay, hides them, or withdraws a right is its trouble, while nothing
// waits and no other statement fails, and is not any more once it is undone.
func TestP7Proof(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ make, undo, want string }{
		"a trigger takes them away": {
			`create function away() returns trigger language plpgsql as 'begin return null; end';
			create trigger away before insert on outbox_event for each row execute function away()`,
			`drop trigger away on outbox_event`, "takes away",
		},
		"deletes are taken away": {
			`create function kept() returns trigger language plpgsql as 'begin return null; end';
			create trigger kept before delete on outbox_event for each row execute function kept()`,
			`drop trigger kept on outbox_event`, "cannot be deleted",
		},
		"a constraint": {
			`alter table outbox_event add constraint narrow check (topic = 'payments')`,
			`alter table outbox_event drop constraint narrow`, "narrow",
		},
		"a column of the user's": {
			`alter table outbox_event add column region text not null default null`,
			`alter table outbox_event drop column region`, "region",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			r := newRelay(t, db, &memory{}, config(func(c *relay.Config) { c.Lease = time.Second }))
			relay.ProveOften(r)
			stop := startRelay(t, r)
			well := `select count(*) = 1 and bool_and(trouble = '') from relay_member`
			pgtest.AwaitSQL(t, db, well)
			db.Exec(t, c.make)
			pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like '%' || $1 || '%')`, c.want)
			db.Exec(t, c.undo)
			pgtest.AwaitSQL(t, db, well)
			if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 0 {
				t.Errorf("%d events of a proof are left", n)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestP7ProofIsNotKnown: a user's trigger that needs what only producers set refuses the relay's own event. That is
// said, and is no trouble: the producers' events pass.
func TestP7ProofIsNotKnown(t *testing.T) {
	t.Parallel()
	db, to, said := outboxDB(t), &memory{}, &text{}
	db.Exec(t, `create function tenant() returns trigger language plpgsql as $$ begin
		perform current_setting('app.tenant'); return new; end $$`)
	db.Exec(t, `create trigger tenant before insert on outbox_event for each row execute function tenant()`)
	r := newRelay(t, db, to, config(func(c *relay.Config) { c.Logger = slog.New(slog.NewTextHandler(said, nil)) }))
	stop := startRelay(t, r)
	pgtest.Await(t, "a line", func() (bool, error) { return said.of("is not known", "app.tenant") != "", nil })
	db.Exec(t, `select set_config('app.tenant', 't', false);
		insert into outbox_event (topic, key, type) values ('payments', 'k', 'T')`)
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db, `select count(*) from relay_member where trouble <> ''`); n != 0 {
		t.Error("it counts as trouble")
	}
	if err := stop(); err != nil || to.count() != 1 {
		t.Errorf("%d events: %v", to.count(), err)
	}
}

// stuck is a publisher that returns when its gate is open.
type stuck struct{ entered, gate chan struct{} }

func (s stuck) Publish(_ context.Context, events []event.Event) []error {
	select {
	case s.entered <- struct{}{}:
	case <-s.gate: // the events are published again: under load the lease may have ended
	}
	<-s.gate
	return make([]error, len(events))
}

// TestP7APumpThatStandsIsNamed: a lane whose pump does not come back, for whatever reason, is the relay's trouble.
func TestP7APumpThatStandsIsNamed(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), stuck{make(chan struct{}), make(chan struct{})}
	r := newRelay(t, db, to, config(func(c *relay.Config) { c.Lease = time.Second }))
	relay.ProveOften(r)
	stop := startRelay(t, r)
	fill(t, db, 1, 1)
	<-to.entered
	pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like
		'lane ' || (select lane from outbox_event) || ': its work is not done')`)
	close(to.gate)
	awaitDrained(t, db)
	pgtest.AwaitSQL(t, db, `select bool_and(trouble = '') from relay_member`)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
