package relay_test

import (
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestP3_5_DividedTables: a table with partitions or child tables has several rows at one position. No relay works with
// it.
func TestP3_5_DividedTables(t *testing.T) {
	t.Parallel()
	for name, divide := range map[string]string{
		"a child table": `create table child () inherits (outbox_event)`,
		"partitions": `alter table outbox_event rename to old; alter sequence outbox_event_id_seq rename to old_seq;
			create table outbox_event (like old including defaults including generated including constraints)
				partition by range (id);
			create sequence outbox_event_id_seq owned by outbox_event.id;
			alter table outbox_event alter id set default nextval('outbox_event_id_seq'), add primary key (lane, id);
			create table low partition of outbox_event for values from (minvalue) to (100);
			create table high partition of outbox_event for values from (100) to (maxvalue)`,
		"a child of the journal": `create table child () inherits (outbox_claim)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			db.Exec(t, divide)
			fill(t, db, 200, 100)
			const want = "has partitions or child tables"
			if _, err := newRelay(t, db, to, config()).Once(t.Context()); err == nil ||
				!strings.Contains(err.Error(), want) || to.count() != 0 {
				t.Fatalf("Once: %d events, %v", to.count(), err)
			}
			if err := newRelay(t, db, to, config()).Run(t.Context()); !strings.Contains(err.Error(), want) {
				t.Errorf("Run: %v", err)
			}
			d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
			if err != nil || !strings.Contains(d.Divided, "outbox_") {
				t.Errorf("the diagnosis names %q: %v", d.Divided, err)
			}
		})
	}
}

// TestP3_5_ChildTableUnderWay: a claim that is under way when a child table comes deletes its own rows, and none of the
// child's.
func TestP3_5_ChildTableUnderWay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*relay.Config){
		"": func(*relay.Config) {}, "archive": func(c *relay.Config) { c.ArchiveDays = 7 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
			stop := startRelay(t, newRelay(t, db, to, config(change, func(c *relay.Config) { c.Pumps = 1 })))
			fill(t, db, 10, 1)
			<-to.entered
			db.Exec(t, `create table child () inherits (outbox_event)`)
			db.Exec(t, `insert into child (id, topic, key, type) select 1000 + g, 'payments', 'other', 'T'
				from generate_series(1, 10) g`)
			to.gate <- struct{}{}
			pgtest.AwaitSQL(t, db, `select not exists (select from only outbox_event)`)
			if n := pgtest.One[int](t, db, `select count(*) from child`); n != 10 {
				t.Errorf("%d of 10 rows are left in the child table", n)
			}
			close(to.gate)
			go func() {
				for range to.entered { // a claim of the child's rows
				}
			}()
			err := stop()
			close(to.entered)
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
