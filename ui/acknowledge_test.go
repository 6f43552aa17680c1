package ui_test

import (
	"net/http"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// TestAcknowledge: a warning that is known is shown with why, and not counted, until other words or its end; a failure
// cannot be known away.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	for set, audit := range map[migrations.Set]string{
		migrations.Outbox: "outbox_audit", migrations.Inbox: "inbox_audit",
	} {
		t.Run(string(set), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, set)
			s := serve(t, ui.Config{}, of("orders", db))
			check, found, warn := "paused", "refunds (ann: r), 2 events", func(n int) {
				db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant,
						key, type, content_type, created_at)
					select 3, nextval('outbox_event_id_seq'), 'refunds', 1, g, false, gen_random_uuid(), '', '', 'k',
						'T', '', now() from generate_series(1, $1) g`, n)
			}
			if set == migrations.Outbox {
				db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason) values ('refunds', 'ann', 'r')`)
			} else {
				check, found, warn = "consumer ledger", "2 events parked, 2 keys, 0 quarantined", func(n int) {
					for range n {
						failed(t, db, pgtest.One[string](t, db, "select gen_random_uuid()::text"))
					}
				}
			}
			warn(2)
			shows := func(texts ...string) (page string) {
				t.Helper()
				pgtest.Await(t, "the page says it", func() (bool, error) {
					page = s.get("/")
					for _, text := range texts {
						if !contains(page, text) {
							return false, nil
						}
					}
					return true, nil
				})
				return page
			}
			shows("to look at: " + check)
			status, page := s.post("/db/orders/acknowledge", "check", check, "found", found, "days", "30")
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, page)
			}
			page = shows("1 finding acknowledged", "it's <late> night <b>shift</b>, until")
			lacks(t, page, "to look at: </span>"+check)
			warn(1)
			shows("1 finding acknowledged", "3 events")
			_, page = s.post("/db/orders/acknowledge", "check", check, "found", found, "days", "0")
			wants(t, page, "It is acknowledged no longer.")
			shows("to look at: " + check)
			if status, _ = s.post("/db/orders/acknowledge", "check", "durability", "found",
				"fsync off, full_page_writes off"); status != http.StatusOK {
				t.Errorf("%d", status)
			}
			shows("wrong: durability", "to look at: "+check)
			if n := pgtest.One[int64](t, db, `select count(*) from `+audit+`
				where action = 'acknowledge finding'`); n != 3 {
				t.Errorf("the audit has %d", n)
			}
		})
	}
}
