package ui_test

import (
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// groupOf follows the link of a group whose row has a text.
func (s *site) groupOf(text string) string {
	s.t.Helper()
	row := regexp.MustCompile(`(?s)<tr>.*?</tr>`)
	link := regexp.MustCompile(`href="` + prefix + `([^"]+/failures\?[^"]*)"`)
	for _, r := range row.FindAllString(s.get("/failures"), -1) {
		if m := link.FindStringSubmatch(r); m != nil && contains(r, text) {
			return s.get(html.UnescapeString(m[1]))
		}
	}
	s.t.Fatalf("no group has %q:\n%s", text, words(s.get("/failures")))
	return ""
}

var input = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// formOf are the fields of the first form that goes to a path.
func formOf(t *testing.T, page, to string) (fields []string) {
	t.Helper()
	_, form, ok := strings.Cut(page, `action="`+prefix+to+`"`)
	if !ok {
		t.Fatalf("no form for %s:\n%s", to, page)
	}
	form, _, _ = strings.Cut(form, "</form>")
	for _, m := range input.FindAllStringSubmatch(form, -1) {
		fields = append(fields, m[1], html.UnescapeString(m[2]))
	}
	return append(fields, "limit", "1000")
}

// TestFailures: what has failed alike is one line, is counted before anything is done, and a verb changes what was
// counted and nothing else.
func TestFailures(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/failures"), "Nothing waits for a person.")
	for i := range 3 {
		park(t, db, fmt.Sprint("k", i), "canary-payload")
	}
	behind := park(t, db, "k0", "{}")
	park(t, db, "", "{}")
	other := park(t, db, "other", "{}")
	db.Exec(t, `update outbox_parked set type = 'Refunded', attempts = 0 where id = $1`, behind)
	db.Exec(t, `update outbox_parked set type = 'Lost <i>' where id = $1`, other)
	db.Exec(t, `update outbox_parked_key set code = '', reason = 'odd' where key = 'other'`)
	page := s.get("/failures")
	wants(t, page, "payments Paid refused MESSAGE_TOO_LARGE Message <too> large 3 1",
		"payments Lost <i> refused odd 1 0")
	lacks(t, page, "<i>", "canary")
	wants(t, s.get("/failures?by=hour"), ":00:00 UTC payments Paid refused")
	if status, _ := s.do(s.request(http.MethodGet, "/failures?by=week", nil)); status != http.StatusNotFound {
		t.Errorf("by week: %d", status)
	}

	page = s.groupOf("Paid")
	wants(t, page, "3 keys and 1 lone event, 5 events in all, of which 1 wait behind others", "Release 5 events",
		"relay parked discard --schema="+db.Schema+
			" --all --topic=payments --type=Paid --code=MESSAGE_TOO_LARGE --kind=refused --until=")
	release, discard := "/db/orders/outbox/failures/release", "/db/orders/outbox/failures/discard"
	lacks(t, s.as(ui.View).groupOf("Paid"), `method="post"`)
	form := formOf(t, page, discard)
	late := park(t, db, "late", "{}") // it was not counted
	status, page := s.post(discard, form...)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "4 events given up for good.", "--limit=1000 --reason='it'\\''s <late>' --operator")
	if got := pgtest.One[string](t, db, `select string_agg(id::text, ' ' order by id) from outbox_parked`); got !=
		fmt.Sprintf("%d %d %d", behind, other, late) {
		t.Errorf("left are %s, want %d, %d and %d", got, behind, other, late)
	}
	if status, page = s.post(discard, form...); status != http.StatusConflict {
		t.Errorf("a group that is gone: %d %s", status, page)
	}
	wants(t, s.get("/failures"), "payments Refunded behind MESSAGE_TOO_LARGE Message <too> large 1 0")
	page = s.groupOf("Refunded")
	lacks(t, page, "Give them up")
	form = formOf(t, page, release)
	if status, page = s.post(discard, form...); status != http.StatusBadRequest {
		t.Errorf("a discard of what has not failed: %d %s", status, page)
	}
	if status, page = s.post(release, form...); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "1 key is released")
	if status, page = s.post(release, formOf(t, s.groupOf("odd"), release)...); status != http.StatusOK {
		t.Errorf("an empty code: %d %s", status, page)
	}
	if audited(t, db, "discard event") != 4 || audited(t, db, "release key") != 2 {
		t.Error("the audit lacks a change")
	}
	wants(t, s.get("/failures"), "payments Paid refused") // the late one
}

// TestFailuresOfAnInbox: those of an inbox are a consumer's, and what is in quarantine is nobody's to release at once.
func TestFailuresOfAnInbox(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	failed(t, db, "k", "k", "other")
	db.Exec(t, `insert into inbox_parked (consumer_name, message_id, kind, topic, record_partition, record_offset,
		record_millis) values ('ledger', gen_random_uuid(), 'quarantined', 'payments', 0, 99, 0)`)
	s := serve(t, ui.Config{}, of("ledger-db", db))
	wants(t, s.get("/failures"), "payments ledger Paid failed NO_ACCOUNT", "quarantined")
	page := s.groupOf("quarantined")
	lacks(t, page, `method="post"`)
	wants(t, page, "The inbox cannot tell whether these were applied")
	page = s.groupOf("NO_ACCOUNT")
	wants(t, page, "2 keys and 0 lone events, 3 events in all, of which 1 wait behind others")
	release := "/db/ledger-db/inbox/failures/release"
	status, page := s.post(release, formOf(t, page, release)...)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "2 keys are released", "3 events, each key in order.")
	lacks(t, s.get("/failures"), "NO_ACCOUNT")
}

// TestManyFailures: of 10,001 as many are grouped as are said to be, and a verb takes a thousand.
func TestManyFailures(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	db.Exec(t, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
			tenant, topic, key, type, content_type, created_at)
		select g % 32, g, true, false, 1, 'r', 'C', gen_random_uuid(), '', '', 'payments', '', 'Paid', '', now()
		from generate_series(1, 10001) g`)
	wants(t, s.get("/failures"), "These are the 10 000 that have been parked longest.", "r 0 10 000")
	page := s.groupOf("payments")
	wants(t, page, "The first 1 000 of more: 0 keys and 1 000 lone events, 1 000 events in all")
	release := "/db/orders/outbox/failures/release"
	form := formOf(t, page, release)
	form[len(form)-1] = "20"
	if status, page := s.post(release, form...); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_parked where releasing`); n != 20 {
		t.Errorf("%d are released", n)
	}
}
