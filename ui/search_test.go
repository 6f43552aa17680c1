package ui_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// TestSearch: an event is found in all databases by what people know of it, and its path is told in order of time.
func TestSearch(t *testing.T) {
	t.Parallel()
	orders, ledger := outboxDB(t), pgtest.New(t, migrations.Inbox, migrations.Idempotency)
	s := serve(t, ui.Config{}, of("orders", orders), of("ledger-db", ledger))
	failed(t, ledger, "pay-1")
	givenUp(t, ledger, "pay-1")
	id := pgtest.One[string](t, ledger, `select message_id::text from inbox_parked`)
	orders.Exec(t, `insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
			content_type, payload, created_at, published_at)
		values ('e.1', 3, 39, 17, $1, '', '', 'payments', 'pay-1', 'Paid', '', 'canary-payload', $2, $3)`, id,
		time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))
	waiting := pgtest.One[int64](t, orders, `insert into outbox_event (topic, key, type) values ('payments', 'pay-1', 'Paid')
		returning id`)

	page := s.get("/search?text=pay-1")
	wants(t, page, "waiting", "failed ledger", "payment.create acme pay-1 stuck", "relay find --schema="+orders.Schema+
		" --text=pay-1", "What is published is found by its message id alone")
	lacks(t, page, "canary")
	wants(t, s.get(fmt.Sprintf("/search?text=%d", waiting)), fmt.Sprintf("waiting %d payments pay-1", waiting))
	page = s.get("/search?text=" + id)
	text := words(page)
	for _, what := range []string{"Appended orders", "Published orders", "Parked: failed ledger-db, ledger"} {
		at := strings.Index(text, what)
		if at < 0 {
			t.Fatalf("no %q: %s", what, text)
		}
		text = text[at:]
	}
	wants(t, page, "number 39 of lane 3, epoch e.1", "id 17, lane 3, topic payments")
	wants(t, s.get("/search?text=nothing"), "Nothing was found here.")
	wants(t, s.get("/search"), "All databases are asked.")

	parked := pgtest.One[int64](t, ledger, `select id from inbox_parked`)
	page = s.get(fmt.Sprintf("/db/ledger-db/inbox/events/%d", parked))
	wants(t, page, "Path look further Appended orders", "Published orders", "Parked: failed ledger-db, ledger")
}

// TestSearchAway: a database that is away hides nothing of the others.
func TestSearchAway(t *testing.T) {
	t.Parallel()
	db, other := outboxDB(t), outboxDB(t)
	proxy, database := through(t, db)
	s := serve(t, ui.Config{}, database, of("billing", other))
	other.Exec(t, `insert into outbox_event (topic, key, type) values ('payments', 'pay-1', 'Paid')`)
	s.get("/")
	proxy.Refuse(true)
	proxy.CutAll()
	status, page := s.do(s.request(http.MethodGet, "/search?text=pay-1", nil))
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "This database cannot be looked at", "waiting", "pay-1")
}

// TestPathWithinAScope: who sees some topics sees nothing of another one in an event's path.
func TestPathWithinAScope(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	failed(t, db, "pay-1")
	db.Exec(t, `insert into outbox_archive (epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
			content_type, created_at)
		select 'e.1', 3, n, n, p.message_id, '', '', t, 'k', 'Paid', '', now()
		from inbox_parked p, unnest(array['payments', 'hidden-topic']) with ordinality u (t, n)`)
	path := fmt.Sprintf("/db/orders/inbox/events/%d", pgtest.One[int64](t, db, `select id from inbox_parked`))
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get(path), "topic hidden-topic", "look further")
	page := s.within("payments/").get(path)
	wants(t, page, "topic payments", "Published orders", "Parked: failed")
	lacks(t, page, "hidden-topic")
}
