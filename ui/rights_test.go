package ui_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

type route struct {
	method, path string
	level        ui.Level
	pattern      string
}

func routes(t *testing.T) (list []route) {
	t.Helper()
	source, err := os.ReadFile("routes.go")
	if err != nil {
		t.Fatal(err)
	}
	// One is the table's, the other is of what no route takes.
	if strings.Contains(string(source), "mux.Handle(") || strings.Count(string(source), "mux.HandleFunc(") != 2 {
		t.Fatal("a route goes past the table")
	}
	fill := strings.NewReplacer("{$}", "", "{version}", ui.AssetVersion, "{file}", "style.css", "{db}", "orders",
		"{side}", "outbox", "{id}", "1", "{topic}", "payments")
	for _, r := range ui.Routes() {
		list = append(list, route{r.Method, fill.Replace(r.Path), r.Level, r.Path})
	}
	return list
}

// TestRights: nobody gets to any route without Authorize, nor above the level that it gave; no GET changes anything,
// and no other site's page does.
func TestRights(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	park(t, db, "", "canary-payload")
	s := serve(t, ui.Config{}, of("orders", db))
	for _, r := range routes(t) {
		name := r.method + " " + r.path
		for level := ui.Level(0); level < r.level; level++ {
			status, page := s.as(level).do(s.request(r.method, r.path, nil))
			if status != http.StatusForbidden {
				t.Errorf("%s is open to level %q: %d", name, level, status)
			}
			if level == 0 && page != "you are nobody here\n" {
				t.Errorf("%s says to nobody: %s", name, page)
			}
		}
		if r.method != http.MethodPost {
			continue
		}
		if status, _ := s.do(s.request(http.MethodGet, r.path, nil)); status != http.StatusMethodNotAllowed &&
			status != http.StatusNotFound {
			t.Errorf("GET %s: %d", r.path, status)
		}
		for header, value := range map[string]string{
			"Sec-Fetch-Site": "cross-site", "Origin": "https://other.example",
		} {
			req := s.request(http.MethodPost, r.path, map[string][]string{"reason": {"r"}})
			req.Header.Del("Sec-Fetch-Site")
			req.Header.Set(header, value)
			if status, page := s.do(req); status != http.StatusForbidden || !strings.Contains(page, "cross-origin") {
				t.Errorf("%s of another site: %d %s", name, status, page)
			}
		}
		if status, page := s.do(s.request(http.MethodPost, r.path, nil)); status < 400 || status >= 500 {
			t.Errorf("%s without a reason: %d %s", name, status, page)
		}
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_audit`); n != 0 {
		t.Errorf("%d changes were made", n)
	}
}

// TestChallenge: a browser is asked for a password where Authorize wants one.
func TestChallenge(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	h, err := ui.New([]ui.Database{of("a", db)}, ui.Config{Authorize: func(*http.Request) (ui.Identity, error) {
		return ui.Identity{}, ui.Challenge(`Basic realm="x"`)
	}})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != `Basic realm="x"` {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

// TestHeaders: pages run nobody's script, load nothing from elsewhere, stand in no frame and are kept by no cache.
func TestHeaders(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	park(t, db, "k", "{}")
	elsewhere := regexp.MustCompile(`(?:src|href)="(https?:)?//[^"]*"`)
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|<script>|\son[a-z]+=|javascript:`)
	for _, r := range routes(t) {
		if r.method != http.MethodGet {
			continue
		}
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, prefix+r.path, nil)
		req.Header.Set("Test-Level", "view")
		s.h.ServeHTTP(w, req)
		if got := w.Header().Get("Content-Security-Policy"); got != ui.Policy || strings.Contains(got, "unsafe") {
			t.Errorf("%s: %s", r.path, got)
		}
		cached := strings.Contains(w.Header().Get("Cache-Control"), "immutable")
		if cached != strings.Contains(r.path, "/static/") || w.Header().Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", r.path, w.Header())
		}
		if found := inline.FindString(w.Body.String()); found != "" && !cached {
			t.Errorf("%s has %s in it", r.path, found)
		}
		for _, link := range elsewhere.FindAllString(w.Body.String(), -1) {
			if !strings.Contains(link, "/docs/runbooks/") {
				t.Errorf("%s loads or leads elsewhere: %s", r.path, link)
			}
		}
	}
}

// TestMissingGrant: every page names what its role may not read, with the grant, and calls none of that empty.
func TestMissingGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "outbox", "inbox", "idempotency")
	pool := reader(t, db)
	failed(t, db, "pay-1")
	name := pool.Config().ConnConfig.User
	db.Exec(t, "revoke select on inbox_parked, idempotency_key, outbox_audit from "+name)
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema})
	for _, path := range []string{"/", "/keys", "/idempotency", "/search"} {
		wants(t, s.get(path), "Not looked at: orders, inbox: this role lacks table inbox_parked: select: grant that.",
			"Not looked at: orders, keys: permission denied for table idempotency_key; "+
				"grant select on table idempotency_key to this role.")
	}
	wants(t, s.examined(), "not known: the inbox, which this role may not read; the keys")
	page := s.get("/search?text=pay-1")
	wants(t, page, "grant select on table inbox_parked to this role", "grant select on table idempotency_key")
	lacks(t, page, "Nothing was found here.")
	wants(t, s.get("/audit"), "grant select on table outbox_audit to this role")
	db.Exec(t, "revoke usage on schema "+db.Schema+" from "+name)
	wants(t, s.get("/"), "grant usage on schema "+db.Schema+" to this role")
}

// TestRawText: what a browser would hide, or write from right to left, is seen on every page.
func TestRawText(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	id := park(t, db, "k", "{}")
	db.Exec(t, "update outbox_parked set reason = $1, type = $1, source = $1", "a\u202eb\x1bc\u2066")
	db.Exec(t, "update outbox_parked_key set reason = $1", "a\u202eb\x1bc\u2066")
	db.Exec(t, `insert into outbox_audit (operator, action, reason, detail) values ($1, 'pause topic', $1, '{}')`,
		"a\u202eb\x1bc\u2066")
	for _, path := range []string{"/keys", "/failures", "/audit", "/db/orders/outbox/events", eventPath(id)} {
		page := s.get(path)
		wants(t, page, "a\u2421b\u241bc\u2421")
		if text := words(page); strings.ContainsAny(text, "\u202e\x1b\u2066") {
			t.Errorf("%s has it raw: %q", path, text)
		}
	}
}

// TestReadOnly: a role that may only read gets pages without buttons, and a refusal that says so.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "outbox", "inbox")
	id := park(t, db, "k", "canary-payload")
	pool := reader(t, db)
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema})
	page := s.examined()
	wants(t, page, "The database lets this page only read", "Refused 1 event", "Kafka refused an event of each key")
	lacks(t, page, "A relay that connects as this role", "A worker that connects as this role")
	page = s.get("/keys")
	wants(t, page, "parked MESSAGE_TOO_LARGE", "Commands", "relay parked release")
	lacks(t, page, `method="post"`)
	lacks(t, s.get("/topics"), `method="post"`)
	page = s.get(eventPath(id))
	lacks(t, page, `method="post"`, "canary-payload")
	for _, path := range []string{"/db/orders/outbox/keys/release", eventPath(id) + "/reveal"} {
		status, page := s.post(path, "topic", "payments", "tenant", "", "key", ui.B64("k"))
		if status != http.StatusForbidden || !strings.Contains(words(page), "lets this page only read") {
			t.Errorf("%s: %d %s", path, status, page)
		}
		lacks(t, page, "canary-payload")
	}
}
