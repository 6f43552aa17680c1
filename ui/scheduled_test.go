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
	if status, _ := s.post(cancel, "seq", "2"); status != http.StatusUnprocessableEntity {
		t.Errorf("without its time: %d", status)
	}
	status, page := s.post(cancel, "seq", "2", "due", due)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "Event 2 will not be published.",
		fmt.Sprintf("relay scheduled cancel --schema=%s --seq=2 --due=%s --reason", db.Schema, due))
	if status, page = s.post(cancel, "seq", "2", "due", due); status != http.StatusConflict {
		t.Errorf("what is cancelled: %d %s", status, page)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_scheduled`); n != 2 || audited(t, db,
		"cancel scheduled") != 1 {
		t.Errorf("%d are left", n)
	}
}

// TestScheduledCancelAll: where the filter names a topic, all of it is cancelled, or all of the key that it names too.
func TestScheduledCancelAll(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, tenant, type) values
		(now() + interval '1 hour', 'payments', 'k', '', 'T'),
		(now() + interval '2 hours', 'payments', 'k', 'acme', 'T'),
		(now() + interval '3 hours', 'payments', 'l', '', 'T'),
		(now() + interval '4 hours', 'refunds', 'k', '', 'T')`)
	const all, button = "/db/orders/scheduled/cancel-all", "Publish none of them"
	command := fmt.Sprintf("relay scheduled cancel-all --schema=%s --topic=payments", db.Schema)
	lacks(t, s.get("/scheduled"), button)
	lacks(t, s.get("/scheduled?topic=nobodys"), button)
	wants(t, s.get("/scheduled?topic=payments"), "for topic payments is deleted for good, when", command+" --reason")
	page := s.get("/scheduled?topic=payments&key=k&until=2126-01-01")
	wants(t, page, "for topic payments and key k is deleted", "later than the filter says", command+" --key=k --reason")
	lacks(t, s.as(ui.View).get("/scheduled?topic=payments"), button)
	if status, page := s.post(all, "topic", ""); status != http.StatusUnprocessableEntity {
		t.Errorf("without a topic: %d %s", status, page)
	}
	for _, c := range []struct {
		pairs []string
		says  string
		left  int64
	}{
		{[]string{"topic", "payments", "key", "k"}, "2 events will not be published.", 2},
		{[]string{"topic", "payments"}, "1 event will not be published.", 1},
	} {
		status, page := s.post(all, c.pairs...)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, page)
		}
		wants(t, page, c.says, command)
		if n := pgtest.One[int64](t, db, `select count(*) from outbox_scheduled`); n != c.left {
			t.Errorf("%v: %d are left, want %d", c.pairs, n, c.left)
		}
	}
	if status, page := s.post(all, "topic", "payments"); status != http.StatusConflict {
		t.Errorf("what is cancelled: %d %s", status, page)
	}
	if n := audited(t, db, "cancel all scheduled"); n != 2 {
		t.Errorf("%d rows are in the audit", n)
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
