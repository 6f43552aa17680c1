package ui_test

import (
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// prefix is where the pages of these tests stand.
const prefix = "/ops/pages"

// site is a Handler in a server, and who asks it.
type site struct {
	t     *testing.T
	h     *ui.Handler
	url   string
	level ui.Level
	scope string
}

// byHeader believes what a test says of itself.
func byHeader(r *http.Request) (ui.Identity, error) {
	level, err := ui.ParseLevel(r.Header.Get("Test-Level"))
	if err != nil {
		return ui.Identity{}, errors.New("you are nobody here")
	}
	who := ui.Identity{Name: "night <b>shift</b>", Level: level}
	if topics, tenants, ok := strings.Cut(r.Header.Get("Test-Scope"), "/"); ok {
		who.Scope = &ui.Scope{Topics: strings.Split(topics, ","), Tenants: strings.Split(tenants, ",")}
	}
	return who, nil
}

func serve(t *testing.T, cfg ui.Config, databases ...ui.Database) *site {
	t.Helper()
	cfg.Authorize, cfg.Prefix, cfg.Refresh = byHeader, prefix, time.Nanosecond
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second // this machine may be slow
	}
	h, err := ui.New(databases, cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", h)
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.Close()
		ui.Settle(h)
	})
	return &site{t, h, server.URL, ui.Operate, ""}
}

// of is a database of a test under a name.
func of(name string, db *pgtest.DB) ui.Database {
	return ui.Database{Name: name, Pool: db.Pool, Schema: db.Schema}
}

// as is the same site for somebody else.
func (s site) as(level ui.Level) *site {
	s.level = level
	return &s
}

// do sends a request and returns status and body.
func (s *site) do(r *http.Request) (int, string) {
	s.t.Helper()
	r.Header.Set("Test-Level", s.level.String())
	r.Header.Set("Test-Scope", s.scope)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (s *site) request(method, path string, form url.Values) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+prefix+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return r
}

// get returns the text of a page that is there, without its markup.
func (s *site) get(path string) string {
	s.t.Helper()
	ui.Changed(s.h)
	status, body := s.do(s.request(http.MethodGet, path, nil))
	if status != http.StatusOK {
		s.t.Fatalf("%s: %d\n%s", path, status, body)
	}
	return body
}

// examined is the overview once the doctor has looked.
func (s *site) examined() (page string) {
	s.t.Helper()
	pgtest.Await(s.t, "the doctor has looked", func() (bool, error) {
		page = s.get("/")
		return contains(page, "checks are as they should be") &&
			!contains(page, "What the doctor finds is not known"), nil
	})
	return page
}

// post sends a form, with a reason where it has none.
func (s *site) post(path string, pairs ...string) (int, string) {
	s.t.Helper()
	form := url.Values{"reason": {"it's <late>"}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return s.do(s.request(http.MethodPost, path, form))
}

var tags = regexp.MustCompile(`(?s)<[^>]*>`)

// words is the text of a page, with single spaces.
func words(page string) string {
	page = tags.ReplaceAllString(page, " ")
	return strings.Join(strings.Fields(html.UnescapeString(page)), " ")
}

func wants(t *testing.T, page string, texts ...string) {
	t.Helper()
	text := words(page)
	for _, want := range texts {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
}

func lacks(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, no := range texts {
		if strings.Contains(page, no) {
			t.Errorf("the page says %q:\n%s", no, page)
		}
	}
}

// park puts an event aside as a relay does when Kafka refuses it, and returns its id. Without a key it is alone.
func park(t *testing.T, db *pgtest.DB, key string, payload any) (id int64) {
	t.Helper()
	id = pgtest.One[int64](t, db, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code,
			message_id, source, tenant, topic, key, type, content_type, headers, payload, created_at)
		values (7, nextval('outbox_event_id_seq'), $1 = '', false, 1, 'Message <too> large', 'MESSAGE_TOO_LARGE',
			gen_random_uuid(), 's', '', 'payments', $1, 'Paid', 'application/json', '{"who": "canary-header"}', $2,
			now()) returning id`, key, payload)
	if key != "" {
		db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, reason, code)
			values (7, '', 'payments', $1, 'Message <too> large', 'MESSAGE_TOO_LARGE') on conflict do nothing`, key)
	}
	return id
}

func outboxDB(t *testing.T) *pgtest.DB {
	t.Helper()
	return pgtest.New(t, migrations.Outbox)
}

func audited(t *testing.T, db *pgtest.DB, action string) int64 {
	t.Helper()
	return pgtest.One[int64](t, db, `select count(*) from outbox_audit where action = $1
		and operator = 'night <b>shift</b>' and reason = 'it''s <late>'`, action)
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	one := []ui.Database{{Name: "a", Pool: pool}}
	for name, c := range map[string]struct {
		databases []ui.Database
		cfg       ui.Config
		says      string
	}{
		"nobody to let in": {one, ui.Config{}, "Authorize is missing"},
		"no database":      {nil, ui.Config{Authorize: byHeader}, "no database"},
		"a wrong name":     {[]ui.Database{{Name: "a/b", Pool: pool}}, ui.Config{Authorize: byHeader}, "a/b"},
		"a name twice":     {append(one, one...), ui.Config{Authorize: byHeader}, "two databases"},
		"no pool":          {[]ui.Database{{Name: "a"}}, ui.Config{Authorize: byHeader}, "no pool"},
		"a wrong schema": {
			[]ui.Database{{Name: "a", Pool: pool, Schema: "No"}}, ui.Config{Authorize: byHeader}, "No",
		},
		"a wrong prefix":     {one, ui.Config{Authorize: byHeader, Prefix: "ops"}, "ops"},
		"the prefix /a{b":    {one, ui.Config{Authorize: byHeader, Prefix: "/a{b"}, "want a path"},
		"the prefix //a":     {one, ui.Config{Authorize: byHeader, Prefix: "//a"}, "want a path"},
		"the prefix /..":     {one, ui.Config{Authorize: byHeader, Prefix: "/.."}, "want a path"},
		"the prefix /a//b":   {one, ui.Config{Authorize: byHeader, Prefix: "/a//b"}, "want a path"},
		"the prefix /{x}":    {one, ui.Config{Authorize: byHeader, Prefix: "/{x}"}, "want a path"},
		"the prefix /x y":    {one, ui.Config{Authorize: byHeader, Prefix: "/x y"}, "want a path"},
		"the prefix /a%2fb":  {one, ui.Config{Authorize: byHeader, Prefix: "/a%2fb"}, "want a path"},
		"the prefix /a/../b": {one, ui.Config{Authorize: byHeader, Prefix: "/a/../b"}, "want a path"},
	} {
		if _, err := ui.New(c.databases, c.cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOverview: each figure and each finding stands on the first page, with its command and its runbook.
func TestOverview(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	s := serve(t, ui.Config{}, of("orders", db))
	park(t, db, "k", "{}")
	db.Exec(t, `insert into outbox_event (topic, key, type, created_at)
		select 'payments', g::text, 'Paid', now() - interval '10 min' from generate_series(1, 1234) g`)
	db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason)
		values ('refunds', 'ann', 'a <broken> consumer')`)
	page := s.examined()
	wants(t, page, "Something is wrong.", "Outbox 1 234 events waiting", "the oldest waits 10 min",
		"Refused 1 event 1 key blocked", "1 topic paused", "Events wait and no relay runs.",
		"refunds (ann: a <broken> consumer), 0 events", "relay run", "night <b>shift</b> operate")
	if !strings.Contains(page, "/docs/runbooks/relay.md#effectoncerelayabsent") ||
		!strings.Contains(page, "/docs/runbooks/relay.md#effectoncetopicpaused") {
		t.Errorf("a runbook is missing:\n%s", page)
	}
	lacks(t, page, "<broken>")
}

// TestChainNamesTheFirst: of several steps that need a look, the first on the way is marked.
func TestChainNamesTheFirst(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	page := s.examined()
	lacks(t, page, `class="step warn`, `class="step fail`)
	park(t, db, "k", "{}")
	db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason) values ('refunds', 'ann', 'r')`)
	pgtest.Await(t, "the step leads to its finding", func() (bool, error) {
		page = s.get("/")
		return strings.Contains(page, `href="#card-orders-paused"`) && strings.Contains(page, `id="card-orders-paused"`),
			nil
	})
	wants(t, page, "Held 0 events 1 topic paused", "Refused 1 event")
	if n := strings.Count(page, `class="step warn first aside"`); n != 1 {
		t.Errorf("%d are the first", n)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 12)`)
	wants(t, s.get("/topics"), "payments 12 0 moves")
	status, page := s.post("/db/orders/topics/pause", "topic", "payments")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "Topic payments is paused", `relay topics pause --schema=`+db.Schema+` --topic=payments `+
		`--reason='it'\''s <late>' --operator='night <b>shift</b>'`)
	wants(t, s.get("/topics"), "payments 12 0 paused night <b>shift</b> it's <late>")
	if status, page = s.post("/db/orders/topics/resume", "topic", "payments"); status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	if status, page = s.post("/db/orders/topics/resume", "topic", "payments"); status != http.StatusConflict {
		t.Errorf("a second resume: %d %s", status, page)
	}
	if audited(t, db, "pause topic") != 1 || audited(t, db, "resume topic") != 1 {
		t.Error("the audit lacks a change")
	}
	wants(t, s.get("/audit"), "night <b>shift</b> pause topic orders outbox payments it's <late>")
}

// TestKeys: a key is shown with why and what waits, and is released and discarded by its own bytes.
func TestKeys(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	wants(t, s.get("/keys"), "No key is blocked")
	const odd = "a b/ü'\"<i>\x01"
	first := park(t, db, odd, "{}")
	park(t, db, odd, "{}")
	park(t, db, "other", "{}")
	page := s.get("/keys")
	wants(t, page, `payments "a b/ü'\"<i>\x01" parked MESSAGE_TOO_LARGE Message <too> large`,
		fmt.Sprintf("event %d", first), "Release 2 events", `--key=$'a b/\xc3\xbc\x27"<i>\x01'`)
	lacks(t, page, "<i>", "canary-header")
	wants(t, s.get("/keys?topic=payments&key=other"), "other parked", "Release 1 event")
	lacks(t, s.get("/keys?key=other"), `"a b`)
	for _, query := range []string{"older=soon", "topic=%00", "key=%ff"} {
		status, page := s.do(s.request(http.MethodGet, "/keys?"+query, nil))
		if status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, status, page)
		}
	}
	form := []string{"topic", "payments", "tenant", "", "key", ui.B64(odd)}
	if status, page := s.post("/db/orders/outbox/keys/release", form...); status != http.StatusOK ||
		!strings.Contains(words(page), "publishes 2 events of its list, in order") {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, s.get("/keys"), "releasing")
	status, page := s.post("/db/orders/outbox/keys/discard", "topic", "payments", "tenant", "", "key", ui.B64("other"))
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "1 event is given up for good.")
	if status, page = s.post("/db/orders/outbox/keys/discard", "topic", "payments", "tenant", "", "key",
		ui.B64("other")); status != http.StatusConflict {
		t.Errorf("what is gone: %d %s", status, page)
	}
	if audited(t, db, "release key") != 1 || audited(t, db, "discard key") != 1 {
		t.Error("the audit lacks a change")
	}
}

// TestPages: a list of 10,000 is shown a hundred at a time, each once.
func TestPages(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	db.Exec(t, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
			tenant, topic, key, type, content_type, created_at)
		select g % 32, g, true, false, 1, 'r', 'C', gen_random_uuid(), '', '', 'payments', '', 'Paid', '', now()
		from generate_series(1, 10000) g`)
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`)
	link := regexp.MustCompile(`/outbox/events/(\d+)"`)
	seen, path := map[string]bool{}, "/db/orders/outbox/events"
	for pages := 0; ; pages++ {
		page := s.get(path)
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if seen[m[1]] {
				t.Fatalf("event %s is on two pages", m[1])
			}
			seen[m[1]] = true
		}
		m := next.FindStringSubmatch(page)
		if m == nil {
			break
		}
		if path = "/db/orders/outbox/events" + strings.ReplaceAll(m[1], "&amp;", "&"); pages > 100 {
			t.Fatal("there is always another page")
		}
	}
	if len(seen) != 10_000 {
		t.Errorf("%d events were shown", len(seen))
	}
}

func contains(page, text string) bool { return strings.Contains(words(page), text) }

// TestOldPage: the button of a page gives up what the page showed, and nothing that was parked since. What came behind
// is released with the rest, but not behind another head.
func TestOldPage(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	first := park(t, db, "k", "{}")
	page := s.get("/keys")
	wants(t, page, fmt.Sprintf("--head=%d --most=1", first))
	form := []string{"topic", "payments", "tenant", "", "key", ui.B64("k")}
	for _, name := range []string{"head", "most"} {
		m := regexp.MustCompile(`name="` + name + `" value="(\d+)"`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("no %s in %s", name, page)
		}
		form = append(form, name, m[1])
	}
	second := park(t, db, "k", "{}")
	press := func(verb string, status int, says string) {
		t.Helper()
		if got, page := s.post("/db/orders/outbox/keys/"+verb, form...); got != status || !contains(page, says) {
			t.Errorf("%s: %d %s", verb, got, page)
		}
	}
	press("discard", http.StatusConflict, "now it has 2 events")
	form[len(form)-3] = strconv.FormatInt(second, 10)
	press("release", http.StatusConflict, "now it has 2 events")
	form[len(form)-3] = strconv.FormatInt(first, 10)
	press("release", http.StatusOK, "is released")
	form[len(form)-1] = "2"
	press("discard", http.StatusOK, "")
}
