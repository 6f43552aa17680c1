package ui_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// TestScheduled: what is published later is listed in the order of its time, and is cancelled once.
func TestScheduled(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/scheduled"), "Nothing is scheduled.")
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, payload) values
		(timestamptz '2126-01-02 03:04:05+00', 'payments', 'later<i>', 'Paid', 'canary-payload'),
		(timestamptz '2125-01-02 03:04:05+00', 'refunds', 'sooner', 'Refunded', 'x'),
		(now() - interval '10 min', 'payments', 'late', 'Paid', 'x')`)
	page := s.get("/scheduled")
	wants(t, page, "3 events scheduled", "has been due for 10 min", "due payments late Paid",
		"2 2125-01-02 03:04:05 UTC refunds sooner Refunded", "1 2126-01-02 03:04:05 UTC payments later<i> Paid")
	lacks(t, page, "canary-payload", "<i>")
	page = s.get("/scheduled?topic=payments&until=2126-01-01")
	wants(t, page, "late")
	lacks(t, page, "later&lt;i", "sooner")
	wants(t, s.get("/scheduled?key=sooner"), "refunds sooner")
	wants(t, s.get("/scheduled?key=nobodys"), "Nothing is scheduled that the filter lets through.")
	if status, page := s.do(s.request(http.MethodGet, "/scheduled?until=soon", nil)); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, page)
	}
	const cancel = "/db/orders/scheduled/cancel"
	const due = "2125-01-02T03:04:05Z"
	if status, _ := s.post(cancel, "seq", "2"); status != http.StatusBadRequest {
		t.Errorf("without its time: %d", status)
	}
	status, page := s.post(cancel, "seq", "2", "due", due)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "It will not be published.",
		fmt.Sprintf("relay scheduled cancel --schema %s --seq 2 --due %s --reason", db.Schema, due))
	if status, page = s.post(cancel, "seq", "2", "due", due); status != http.StatusConflict {
		t.Errorf("what is cancelled: %d %s", status, page)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_scheduled`); n != 2 || audited(t, db,
		"cancel scheduled") != 1 {
		t.Errorf("%d are left", n)
	}
}

// TestScheduledThousands: ten thousand are listed a hundred at most, and the page says so.
func TestScheduledThousands(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type)
		select now() + g * interval '1 hour', 'payments', 'k' || g, 'Paid' from generate_series(1, 10000) g`)
	page := s.get("/scheduled")
	wants(t, page, "10 000 events scheduled", "There are more than these 100", "k1 Paid", "k100 Paid")
	lacks(t, page, ">k101<")
}
