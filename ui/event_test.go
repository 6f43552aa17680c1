package ui_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

func eventPath(id int64) string { return fmt.Sprintf("/db/orders/outbox/events/%d", id) }

// reader is a pool of a role that may read all tables, and nothing else.
func reader(t *testing.T, db *pgtest.DB) *pgxpool.Pool {
	t.Helper()
	name := "reader_" + db.Schema
	admin, err := pgxpool.New(t.Context(), db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"create role " + name + " login", "grant usage on schema " + db.Schema + " to " + name,
		"grant select on all tables in schema " + db.Schema + " to " + name,
		"grant select on all sequences in schema " + db.Schema + " to " + name,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	cfg := db.Pool.Config()
	cfg.ConnConfig.User, cfg.ConnConfig.Password = name, ""
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		ctx := context.Background()
		_, err := admin.Exec(ctx, "drop owned by "+name+"; drop role "+name)
		if err != nil {
			t.Error(err)
		}
		admin.Close()
	})
	return pool
}

// TestReveal: headers and payload are nowhere before somebody of the level reveals them, and the audit has it.
func TestReveal(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	id := park(t, db, "k", `{"card": "canary-payload"}`)
	s := serve(t, ui.Config{}, of("orders", db))
	for _, path := range []string{
		"/", "/topics", "/keys", "/audit", "/db/orders/outbox/events", eventPath(id),
	} {
		lacks(t, s.get(path), "canary-payload", "canary-header")
	}
	wants(t, s.get(eventPath(id)), "Headers and payload are hidden", "MESSAGE_TOO_LARGE", "payments")
	status, page := s.as(ui.View).post(eventPath(id) + "/reveal")
	if status != http.StatusForbidden {
		t.Errorf("%d", status)
	}
	lacks(t, page, "canary")
	status, page = s.as(ui.Reveal).post(eventPath(id) + "/reveal")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, `"card": "canary-payload"`, "who canary-header")
	lacks(t, page, "Edit the payload")
	if audited(t, db, "reveal parked") != 1 {
		t.Error("the audit does not know of it")
	}
	wants(t, s.get("/audit"), "reveal parked")
	lacks(t, s.get("/audit"), "canary")
	if status, _ := s.post(eventPath(9999) + "/reveal"); status != http.StatusConflict {
		t.Errorf("an event that is not there: %d", status)
	}
}

// TestPayloadsAreInert: whatever stands in a payload is text, and a large one stays usable.
func TestPayloadsAreInert(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	show := func(payload any) string {
		t.Helper()
		status, page := s.post(eventPath(park(t, db, "", payload)) + "/reveal")
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, page)
		}
		return page
	}
	const script = `</pre></textarea><script>alert(1)</script><img src=x onerror=alert(1)>`
	page := show(script)
	lacks(t, page, "<script>", "<img", "</textarea><")
	wants(t, page, script)
	page = show(`{"a": "` + script + `"}`)
	lacks(t, page, "<script>", "<img")

	page = show([]byte{0xff, 0xfe, '<', 'u', '>', 0})
	wants(t, page, "ff fe 3c 75 3e 00", "cannot be edited in a page")
	lacks(t, page, "<u>")
	page = show([]byte("turn\u202eback\x07"))
	lacks(t, page, "\u202e", "\x07")

	page = show(bytes.Repeat([]byte("<u>"), 1<<20/3+1))
	wants(t, page, "more bytes are not shown")
	lacks(t, page, "<u>")
	if len(page) > 16<<20 {
		t.Errorf("the page has %d bytes", len(page))
	}
	wants(t, show(""), "It is empty.")
	wants(t, show(nil), "A tombstone")
}

var hidden = regexp.MustCompile(`name="(was|before|after)" value="([^"]*)"`)

// fields are the hidden ones of a page's forms.
func fields(page string) map[string]string {
	found := map[string]string{}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		found[m[1]] = html.UnescapeString(m[2])
	}
	return found
}

// TestEdit: an edit is shown as a diff first, keeps every other byte, and changes nothing that somebody else has
// changed meanwhile.
func TestEdit(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	const before = "{\"amount\": 10,\n \"to\": \"a&b\"}\n"
	id := park(t, db, "k", before)
	_, page := s.post(eventPath(id) + "/reveal")
	was := fields(page)["was"]
	after := strings.Replace(before, "10", "11", 1)
	status, page := s.post(eventPath(id)+"/preview", "was", was, "payload", strings.ReplaceAll(after, "\n", "\r\n"))
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, `- "amount": 10,`, `+ "amount": 11,`, `"to": "a&b"`)
	form := fields(page)
	change := func() (int, string) {
		return s.post(eventPath(id)+"/edit", "before", form["before"], "after", form["after"])
	}
	if status, page = change(); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	if got := pgtest.One[string](t, db, `select convert_from(payload, 'UTF8') from outbox_parked`); got != after {
		t.Errorf("%q", got)
	}
	if status, page = change(); status != http.StatusConflict {
		t.Errorf("a form of before: %d %s", status, page)
	}
	wants(t, page, "Nothing was changed: somebody was quicker")
	if audited(t, db, "edit parked") != 1 {
		t.Error("the audit is not as it should be")
	}
	_, page = s.post(eventPath(id)+"/preview", "was", base64.StdEncoding.EncodeToString([]byte("x")), "payload", "x")
	wants(t, page, "Nothing is changed.")
	// What was JSON stays JSON, unless it is said that bytes are meant.
	lacks(t, page, "Bytes are meant")
	_, page = s.post(eventPath(id)+"/preview", "was", base64.StdEncoding.EncodeToString([]byte(after)), "payload", "{,")
	wants(t, page, "at byte 2: invalid character", "Bytes are meant", "--any-bytes")
	form = fields(page)
	if status, page = change(); status != http.StatusUnprocessableEntity {
		t.Errorf("it is no JSON: %d %s", status, page)
	}
	wants(t, page, "at byte 2: invalid character")
	status, page = s.post(eventPath(id)+"/edit", "before", form["before"], "after", form["after"], "any_bytes", "1")
	if status != http.StatusOK {
		t.Errorf("bytes are meant: %d %s", status, page)
	}
	wants(t, page, "--any-bytes")
}

// TestAlone: an event that blocks no key is released and discarded by itself, one of a key is not released.
func TestAlone(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	alone, gone, listed := park(t, db, "", "x"), park(t, db, "", "x"), park(t, db, "k", "x")
	if status, page := s.post(eventPath(alone) + "/release"); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	wants(t, s.get(eventPath(alone)), "releasing")
	status, page := s.post(eventPath(gone) + "/discard")
	if status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "1 event is given up for good.",
		fmt.Sprintf("relay parked discard --schema=%s --id=%d", db.Schema, gone))
	if status, page = s.post(eventPath(listed) + "/release"); status < 400 {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "Nothing was changed.", "release the key")
	if status, page = s.do(s.request(http.MethodGet, eventPath(gone), nil)); status != http.StatusNotFound {
		t.Errorf("%d %s", status, page)
	}
	wants(t, page, "It was released or discarded meanwhile")
}
