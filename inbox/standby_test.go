package inbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestP9_3_DuplicateWaitsForStandby: an effect is committed while the synchronous standby is away, and its session dies
// during the wait for it. Its row is then visible, but not on the standby, and a failover would lose it. A transaction
// that finds this row for a duplicate must wait for the standby too. Otherwise the offset is committed, and the effect
// is lost with the old primary.
func TestP9_3_DuplicateWaitsForStandby(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	w := &world{server.Database(t, "inbox"), t}
	w.Exec(t, "create table effect (n bigint generated always as identity, id uuid not null, what text not null "+
		"default '')")
	h := w.inbox(inbox.Config{}).Batch(writeAll)
	events := some(6)
	same(t, "with the standby", handle(t, h, events[:3]), repeat(inbox.Applied, 3))
	w.RequireStandby(t, pgtest.Nobody)
	decided := make(chan []inbox.Outcome, 1)
	go func() {
		out, err := h.Handle(t.Context(), events[3:])
		if err != nil {
			t.Error(err)
		}
		decided <- out
	}()
	const waits = "select count(*) > 0 from pg_stat_activity where wait_event = 'SyncRep' and datname = " +
		"current_database()"
	pgtest.AwaitSQL(t, w.DB, waits)
	w.Exec(t, "select pg_terminate_backend(pid, 60000) from pg_stat_activity where wait_event = 'SyncRep' and "+
		"datname = current_database()")
	same(t, "effects to be seen", w.effects(), ids(events)) // the last three are not on the standby
	pgtest.Await(t, "the twin's wait for the standby", func() (bool, error) {
		select {
		case out := <-decided:
			t.Fatalf("decided %v by rows that the standby does not have", out)
		default:
		}
		return pgtest.One[bool](t, w.DB, waits), nil
	})
	w.Exec(t, "alter system reset synchronous_standby_names")
	w.Exec(t, "select pg_reload_conf()")
	same(t, "with the standby again", <-decided, repeat(inbox.Duplicate, 3))
	same(t, "effects", w.effects(), ids(events))
}

// TestP9_3_DuplicateOfProcessTxWrites: a caller's transaction may have only a duplicate. ProcessTx must write
// something, or its COMMIT would not wait for the standby.
func TestP9_3_DuplicateOfProcessTxWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in, e := w.inbox(inbox.Config{}), some(1)[0]
	same(t, "first", handle(t, in.Each(write), []event.Event{e}), repeat(inbox.Applied, 1))
	err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
		out, err := in.ProcessTx(t.Context(), tx, e, write)
		if err != nil {
			return err
		}
		var xid *string // a savepoint that was rolled back leaves none
		if err := tx.QueryRow(t.Context(), "select pg_current_xact_id_if_assigned()::text").Scan(&xid); err != nil {
			return err
		}
		if out != inbox.Duplicate || xid == nil {
			t.Errorf("%v, and the transaction has written nothing", out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
