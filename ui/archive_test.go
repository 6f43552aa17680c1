package ui_test

import (
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// archived puts published events into the archive, an hour ago.
func archived(t *testing.T, db *pgtest.DB, events int) {
	t.Helper()
	db.Exec(t, `insert into outbox_archive (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key,
			type, content_type, payload, created_at)
		select now() - interval '1 hour', 'e.1', 3, g, g, gen_random_uuid(), '', '', 'payments', 'k"' || g % 2, 'Paid', '',
			'canary-payload', now() - interval '2 hours' from generate_series(1, $1) g`, events)
}

func planOf(pairs ...string) string {
	form := url.Values{"topic": {"payments"}, "from": {time.Now().UTC().Add(-3 * time.Hour).Format("2006-01-02 15:04")}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return "/db/orders/replay/plan?" + form.Encode()
}

var choice = regexp.MustCompile(`name="choice" value="([^"]+)"`)

// TestReplay: a replay is counted before it runs, and is told of until it is done.
func TestReplay(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	archived(t, db, 7)
	wants(t, s.get("/archive"), "Archive and replay", "of no day")
	page := s.get(planOf("key", `k"1`))
	wants(t, page, "4 events of 1 key", `key "k\"1"`, "Publish 4 events once more", "relay replay --schema="+db.Schema+
		" --dry-run --from")
	lacks(t, page, "canary-payload")
	if n := pgtest.One[int64](t, db,
		`select (select count(*) from outbox_event) + (select count(*) from outbox_audit)`); n != 0 {
		t.Fatal("a plan has changed something")
	}
	status, page := s.post("/db/orders/replay", "choice", choice.FindStringSubmatch(page)[1])
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "It runs.", "relay replay --schema="+db.Schema+" --from=", `--key='k"1'`, "--reason")
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_audit where action = 'replay ended')`)
	pgtest.Await(t, "the page says that it is done", func() (bool, error) {
		return contains(s.get("/archive"), "orders: topic payments done"), nil
	})
	wants(t, s.get("/archive"), "4 of 4 events are in the outbox again", "By night <b>shift</b>", "it's <late>")
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_event where key = 'k"1'`); n != 4 {
		t.Errorf("%d events are in the outbox", n)
	}
	if audited(t, db, "replay") != 1 || audited(t, db, "replay ended") != 1 {
		t.Error("the audit lacks something")
	}
	wants(t, s.get(planOf("type", "None")), "There are no such events")
	for _, wrong := range []string{
		planOf("from", "soon"), planOf("topic", "a b"), planOf("rate", "-1"), planOf("to", "2001-01-01"),
	} {
		if status, page := s.do(s.request(http.MethodGet, wrong, nil)); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", wrong, status, page)
		}
	}
	for _, wrong := range []string{"", "x", ui.B64(`{"Topic": "a b"}`), ui.B64(`{"Topic": "payments"}`)} {
		if status, page := s.post("/db/orders/replay", "choice", wrong); status < 400 || status >= 500 {
			t.Errorf("%q: %d %s", wrong, status, page)
		}
	}
}

// TestReplayIsStopped: by a person, with a reason that the audit has; then it goes on where it stopped.
func TestReplayIsStopped(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	archived(t, db, 2000)
	form := choice.FindStringSubmatch(s.get(planOf("rate", "4")))[1]
	if status, page := s.post("/db/orders/replay", "choice", form); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_event)`)
	page := s.get("/archive")
	wants(t, page, "orders: topic payments running", "of 2 000 events")
	status, page := s.post("/db/orders/replay", "choice", form)
	if status != http.StatusUnprocessableEntity {
		t.Errorf("a second one: %d %s", status, page)
	}
	wants(t, page, "Nothing was changed.", "runs already")
	if status, page = s.post("/db/orders/replay/stop", "id", "1"); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	if status, page = s.post("/db/orders/replay/stop", "id", "1"); status != http.StatusConflict {
		t.Errorf("one that has ended: %d %s", status, page)
	}
	if got := pgtest.One[string](t, db, `select (detail->>'complete') || ' ' || (detail->>'stopped') from outbox_audit
		where action = 'replay ended'`); got != "false stopped by night <b>shift</b>: it's <late>" {
		t.Errorf("audit: %s", got)
	}
	page = s.get("/archive")
	wants(t, page, "ended early", "Go on", "--after")
	rest := choice.FindStringSubmatch(page)[1]
	db.Exec(t, `delete from outbox_audit`)
	// Without its rate it does not take minutes.
	if status, page = s.post("/db/orders/replay", "choice", ui.Faster(rest)); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	pgtest.AwaitSQL(t, db, `select exists (select from outbox_audit where action = 'replay ended')`)
	if n := pgtest.One[int64](t, db, `select count(distinct message_id) from outbox_event`); n != 2000 {
		t.Errorf("%d events are in the outbox", n)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_event`); n > 2001 {
		t.Errorf("%d events are in the outbox, more than a batch twice", n)
	}
}

// TestReplayReadOnly: a role that only reads may count, and gets no button.
func TestReplayReadOnly(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	archived(t, db, 3)
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: reader(t, db), Schema: db.Schema})
	page := s.get(planOf())
	wants(t, page, "3 events of 2 keys", "relay replay")
	lacks(t, page, `method="post"`)
	c := ui.B64(`{"From":"2026-01-02T00:00:00Z","To":"2126-01-02T00:00:00Z","Topic":"payments"}`)
	status, page := s.post("/db/orders/replay", "choice", c)
	if status < 400 {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "Nothing was changed")
}
