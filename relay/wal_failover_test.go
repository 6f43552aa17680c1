package relay_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWAL6SlotIsKeptByStandby: a standby that has synchronized the slot is promoted. Lanes stay with the WAL, no event
// is read from the table, and a new numbering begins. A slot behind the confirmed position repeats no confirmed event.
// A slot ahead of it may have passed events that no table records as published: then the table is read, as without a
// slot.
func TestWAL6SlotIsKeptByStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two servers")
	}
	t.Parallel()
	for name, ahead := range map[string]bool{"behind": false, "ahead": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.RequireFailoverSlots(t)
			primary := pgtest.NewServer(t)
			old := primary.Database(t, migrations.Outbox)
			standby := primary.Standby(t, "standby")
			primary.KeepSlots(t, standby, "standby")
			old.RequireStandby(t, "standby")
			slot, err := operator.SetUpWAL(t.Context(), old.Pool, "")
			if err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			db, proxy, to := old.At(t, standby), pgtest.NewProxy(t, old.URL), &memory{}
			r, err := relay.New(poolAt(t, proxy.URL()), to, config(fromWAL, func(c *relay.Config) {
				c.Logger = slog.New(slog.NewTextHandler(&said, nil))
			}))
			if err != nil {
				t.Fatal(err)
			}
			stop := startRelay(t, r)
			awaitStreaming(t, old)
			standby.AwaitSynced(t, primary, slot)
			db.Exec(t, `alter system set sync_replication_slots = off`)
			db.Exec(t, `select pg_reload_conf()`)
			pgtest.AwaitSQL(t, db,
				`select not exists (select from pg_stat_activity where backend_type = 'slotsync worker')`)
			fill(t, old, 1000, 20)
			awaitDrained(t, old)
			published := pgtest.One[string](t, old, `select pg_current_wal_lsn()`)
			pgtest.AwaitSQL(t, db, `select confirmed >= $1 from outbox_wal`, published)
			primary.Kill()
			standby.Promote(t)
			pgtest.AwaitSQL(t, db, `select s.confirmed_flush_lsn < w.confirmed from pg_replication_slots s,
				outbox_wal w where s.slot_name = w.slot`)
			for value := 50; value < 60; value++ {
				db.Exec(t, `insert into outbox_event (topic, key, type, payload)
					select 'payments', 'k' || g, 'T', convert_to($1, 'UTF8') from generate_series(0, 19) g`,
					fmt.Sprint(value))
			}
			if ahead {
				db.Exec(t, `select pg_replication_slot_advance($1, pg_current_wal_lsn())`, slot)
			}
			proxy.To(t, standby.URL())
			proxy.CutAll()
			awaitDrained(t, db)
			awaitStreaming(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			log := to.events()
			if again := checkOrder(t, log, 1200); again > 0 && !ahead {
				t.Errorf("%d events that were confirmed were published again", again)
			}
			if n := checkByNumber(t, log); n < 2 {
				t.Error("the numbering is the one of the old server")
			}
			fromTable := 0
			for _, e := range log[1000:] {
				if e.Position.Lane != -1 {
					fromTable++
				}
			}
			if ahead != (fromTable > 0) {
				t.Errorf("%d events were published from the table; the relay said: %s", fromTable, said.String())
			}
		})
	}
}
