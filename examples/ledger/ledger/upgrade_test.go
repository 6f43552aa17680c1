package ledger_test

import (
	"fmt"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestRunsOnTheNextSchema expands the inbox's tables below a running worker, as the next release would do. Then it
// starts the same worker again, as after a rollback, with and without migrating.
func TestRunsOnTheNextSchema(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), kafkatest.Topic(t, 2)
	cfg, f := config(t, db, topic), &fixture{DB: db}
	booked := 0
	publishAndAwait := func(what string) {
		t.Helper()
		var events []event.Event
		for range 60 {
			e := paymentEvent(t, newPayment(1))
			e.Topic = topic
			events = append(events, e)
		}
		publish(t, append(events, events[:10]...)...)
		booked += 60
		pgtest.Await(t, what, func() (bool, error) {
			return pgtest.One[int](t, f.DB, "select count(*) from ledger_entry") == 2*booked, nil
		})
	}
	stop := startWorker(t, cfg)
	pgtest.AwaitSQL(t, db, "select to_regclass('ledger_entry') is not null")
	publishAndAwait("a worker on its own schema")
	list, err := migrations.Applied(t.Context(), db.Pool,
		migrations.Options{Schema: db.Schema, Sets: []migrations.Set{migrations.Inbox}})
	if err != nil {
		t.Fatal(err)
	}
	next := list[len(list)-1].Version + 1
	for n, sql := range []string{
		"alter table inbox_message add column invented text not null default 'x'; alter table inbox_message_any add " +
			"column invented int",
		"alter table inbox_consumer add column invented int; alter table inbox_days add column invented int default " +
			"1; alter table inbox_parked add column invented int; alter table inbox_progress add column invented int",
		"create table inbox_invented (i int); create index inbox_message_invented on inbox_message (invented)",
	} {
		pgtest.Await(t, "the migration", func() (bool, error) {
			_, err := db.Pool.Exec(t.Context(),
				fmt.Sprintf(`do $$ begin perform set_config('lock_timeout', '20s', true); %s;
				insert into effectonce_migration (version_id, is_applied) values (%d, true); end $$`, sql,
					next+int64(n)))
			if pgerr.Is(err, pgerr.DeadlockDetected) { // migrations retry it too
				return false, nil
			}
			return true, err
		})
	}
	publishAndAwait("a worker below which the schema became newer")
	// The worker makes the dropped partition again, with the new columns, which it does not know.
	db.Exec(t, "do $$ declare d text; begin select max(c.relname) into d from pg_inherits i join pg_class c on c.oid "+
		"= i.inhrelid where i.inhparent = 'inbox_message'::regclass; execute 'drop table ' || d; end $$")
	stop()
	cfg.SkipMigrate = true
	stop = startWorker(t, cfg)
	publishAndAwait("a worker that starts on a newer schema")
	stop()
	cfg.SkipMigrate = false
	startWorker(t, cfg)
	publishAndAwait("a worker that starts on a newer schema and migrates")
	f.check(t, booked)
}
