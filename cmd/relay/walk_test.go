package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/crypto/bcrypt"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/ui"
)

// asked is a request as it stands on the wire.
type asked struct {
	method, target, host, from, kind string
	headers                          []string
	body                             string
	cut                              bool // the body ends too early
}

// send has a server's parser read it, and a handler answer it; what the parser refuses is a 400.
func (a asked) send(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	length := len(a.body)
	if a.cut {
		length++
	}
	lines := []string{
		a.method + " " + a.target + " HTTP/1.1", "Host: " + a.host, fmt.Sprint("Content-Length: ", length),
	}
	if a.kind != "" {
		lines = append(lines, "Content-Type: "+a.kind)
	}
	text := strings.Join(append(lines, a.headers...), "\r\n") + "\r\n\r\n" + a.body
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		http.Error(w, "net/http cannot read this request: "+err.Error(), http.StatusBadRequest)
		return w
	}
	r.RemoteAddr = a.from
	h.ServeHTTP(w, r)
	return w
}

// verdict is what must become of a request.
type verdict int

const (
	either  verdict = iota // nothing is claimed but that it changes nothing
	comesIn                // as the same request without the way
	stays                  // it is refused
)

// way is how a request differs. local and proxied are the verdicts at those doors, where they are others.
type way struct {
	name                      string
	change                    func(*asked)
	get, post, local, proxied verdict
}

func header(lines ...string) func(*asked) {
	return func(a *asked) { a.headers = append(a.headers, lines...) }
}

// waysIn are all but those of a principal.
func waysIn() (ways []way) {
	for host, here := range map[string]bool{
		"localhost": true, "localhost:9188": true, "127.0.0.1": true, "127.0.0.1:9188": true, "[::1]": true,
		"[::1]:9188": true, "127.8.9.10": true, "": false, "evil.example": false, "evil.example:9188": false,
		"localhost.evil.example": false, "2130706433": false, "0x7f.1": false, "127.1": false, "0.0.0.0": false,
		"[::]": false, "10.0.0.7:9188": false, "127.0.0.1.evil.example": false, "localhost@evil.example": false,
	} {
		w := way{name: "Host " + host, change: func(a *asked) { a.host = host }, get: comesIn, post: comesIn}
		if !here {
			w.local, w.proxied = stays, stays
		}
		if strings.Contains(host, "@") {
			w.get, w.post = either, either
		}
		ways = append(ways, w)
	}
	for _, name := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-User", "X-Real-IP", "Via",
	} {
		for form, lines := range map[string][]string{
			"once": {name + ": 203.0.113.9"}, "twice": {name + ": a", name + ": b"}, "empty": {name + ":"},
			"in another case": {strings.ToUpper(name) + ": a"}, "in small letters": {strings.ToLower(name) + ": a"},
		} {
			ways = append(ways, way{
				name: name + " " + form, change: header(lines...), get: comesIn, post: comesIn, local: stays,
			})
		}
	}
	for line, post := range map[string]verdict{
		"Origin: https://other.example": stays, "Origin: null": stays, "Origin: http://localhost:1": stays,
		"Origin: http://localhost:9188": comesIn, "Origin:": comesIn, "Sec-Fetch-Site: cross-site": stays,
		"Sec-Fetch-Site: same-site": stays, "Sec-Fetch-Site: odd": stays, "Sec-Fetch-Site: same-origin": comesIn,
		"Sec-Fetch-Site: none": comesIn, "Referer: https://other.example/": comesIn,
		"Cookie: a=b\r\nCookie: a=c":                                  comesIn,
		"Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost:9188": stays, "Expect: 100-continue": comesIn,
		"X-HTTP-Method-Override: POST": comesIn, "Upgrade: h2c\r\nConnection: Upgrade": comesIn,
	} {
		ways = append(ways, way{name: line, change: header(line), get: comesIn, post: post})
	}
	for kind, post := range map[string]verdict{
		"": stays, "text/plain": stays, "application/json": stays, "multipart/form-data": stays,
		"multipart/form-data; boundary=x": stays, "application/x-www-form-urlencoded; charset=utf-8": comesIn,
		"application/x-www-form-urlencoded; =": stays, "Application/X-WWW-Form-Urlencoded": comesIn,
	} {
		change := func(a *asked) { a.kind = kind }
		ways = append(ways, way{name: "Content-Type " + kind, change: change, get: comesIn, post: post})
	}
	body := func(name string, change func(*asked)) {
		ways = append(ways, way{name: name, change: change, get: either, post: stays})
	}
	body("a body that is cut", func(a *asked) { a.cut = true })
	body("a field twice", func(a *asked) { a.body += "&" + a.body })
	body("a malformed field", func(a *asked) { a.body += "&x=%zz" })
	body("a semicolon", func(a *asked) { a.body += "&x;y=1" })
	large := "&x=" + strings.Repeat("x", 16<<20)
	body("a body that is too large", func(a *asked) { a.body += large })
	body("no body", func(a *asked) { a.body = "" })
	query := func(name, query string, get, post verdict) {
		ways = append(ways, way{name: "query " + name, change: func(a *asked) {
			join := "?"
			if strings.Contains(a.target, "?") {
				join = "&"
			}
			a.target += join + query
		}, get: get, post: post})
	}
	query("unknown", "unknown=1", comesIn, comesIn)
	query("twice", "topic=payments&topic=refunds", stays, stays)
	query("malformed", "topic=%zz", stays, stays)
	query("semicolon", "a;b", stays, stays)
	target := func(name string, change func(string) string, post verdict) {
		ways = append(ways, way{
			name: "path " + name, change: func(a *asked) { a.target = change(a.target) }, post: post,
		})
	}
	target("with a slash behind", func(s string) string { return s + "/" }, stays)
	target("with two slashes", func(s string) string { return strings.Replace(s, "/", "//", 1) }, stays)
	target("with dots", func(s string) string { return "/a/.." + s }, stays)
	target("with encoded dots", func(s string) string { return "/%2e%2e" + s }, stays)
	target("with an encoded slash", func(s string) string { return "/%2f" + strings.TrimPrefix(s, "/") }, stays)
	target("without its prefix", func(s string) string { return strings.TrimPrefix(s, "/ops") }, stays)
	target("under another prefix", func(s string) string { return "/x" + s }, stays)
	target("absolute", func(s string) string { return "http://localhost" + s }, comesIn)
	target("absolute, elsewhere", func(s string) string { return "http://evil.example" + s }, either)
	target("of nothing", func(string) string { return "*" }, stays)
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace, "MOVE", "post", "G3T",
	} {
		w := way{name: "method " + method, change: func(a *asked) { a.method = method }, get: stays, post: stays}
		switch method {
		case http.MethodPost:
			w.post = comesIn
		case http.MethodGet, http.MethodHead:
			w.get = comesIn
		}
		ways = append(ways, w)
	}
	const markup = `<canary x="'`
	for _, name := range []string{
		"topic", "key", "code", "kind", "consumer", "older", "after", "by", "operation", "until", "from", "to", "type",
		"text", "tenant", "rate", "since",
	} {
		query("with markup in "+name, name+"="+url.QueryEscape(markup), either, either)
	}
	ways = append(ways, way{name: "markup in all fields", change: func(a *asked) {
		form, _ := url.ParseQuery(a.body)
		for name := range form {
			form.Set(name, markup)
		}
		a.body = form.Encode()
	}})
	target("with markup", func(s string) string {
		return regexp.MustCompile(`orders|outbox\b|payments|1\d\d`).ReplaceAllString(s, url.PathEscape(markup))
	}, either)
	return ways
}

// principal is who comes to a door, and the level that the oracle gives.
type principal struct {
	name   string
	change func(*asked)
	level  ui.Level
}

// walkDoor is pages with one kind of access, and who comes. The last principal may operate.
type walkDoor struct {
	name       string
	flags      []string
	principals []principal
	http.Handler
}

func walkDoors(t *testing.T) []*walkDoor {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(canary), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(t.TempDir(), "users")
	lines := fmt.Sprintf("view:%s:view\nreveal:%[1]s:reveal\nscoped:%[1]s:view:nothing\noperate:%[1]s:operate\n", hash)
	if err := os.WriteFile(users, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	login := func(name, password string) func(*asked) {
		return header("Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password)))
	}
	from := func(address string, lines ...string) func(*asked) {
		return func(a *asked) { a.from, a.headers = address, append(a.headers, lines...) }
	}
	byProxy := func(address string) []principal {
		return []principal{
			{"no name", from(address), 0},
			{"an empty name", from(address, "X-User:"), 0},
			{"the name twice", from(address, "X-User: ann", "X-User: ann"), 0},
			{"two names", from(address, "X-User: ann", "x-user: bob"), 0},
			{"an empty one and a name", from(address, "X-User:", "X-User: ann"), 0},
			{"a name from elsewhere", from("192.0.2.7:1", "X-User: ann"), 0},
			{"a name from nowhere", from("", "X-User: ann"), 0},
			{"another header", from(address, "X_User: ann", "X-Forwarded-User: ann"), 0},
			{"markup", from(address, "X-User: <canary x=\"'"), ui.Operate},
			{"another case", from(address, "X-USER: ann"), ui.Operate},
			{"ann", from(address, "X-User: ann"), ui.Operate},
		}
	}
	return []*walkDoor{
		{name: "local", principals: []principal{
			{"elsewhere", from("192.0.2.7:1"), 0},
			{"nowhere", from("nonsense"), 0},
			{"here", from("127.0.0.1:1"), ui.Operate},
		}},
		{
			name: "proxied", principals: byProxy("127.0.0.1:1"),
			flags: []string{"--proxy-header=X-User", "--proxy-level=operate"},
		},
		{
			name: "proxied elsewhere", principals: byProxy("10.1.2.3:1"),
			flags: []string{"--proxy-header=X-User", "--proxy-level=operate", "--proxy-from=10.1.0.0/16"},
		},
		{name: "users", flags: []string{"--users=" + users, "--proxy-header=X-User"}, principals: []principal{
			{"nobody", header(), 0},
			{"a wrong password", login("operate", "x"), 0},
			{"no password", login("operate", ""), 0},
			{"an unknown name", login("eve", canary), 0},
			{"two logins", func(a *asked) { login("eve", canary)(a); login("operate", canary)(a) }, 0},
			{"a token", header("Authorization: Bearer " + canary), 0},
			{"scoped", login("scoped", canary), ui.View},
			{"view", login("view", canary), ui.View},
			{"reveal", login("reveal", canary), ui.Reveal},
			{"operate by proxy", header("X-User: operate"), ui.Operate},
			{"unknown by proxy", header("X-User: dora"), ui.View},
			{"operate", login("operate", canary), ui.Operate},
		}},
	}
}

// walkRoute is a line of the pages' table, with a request that does what it is for.
type walkRoute struct {
	method, pattern, target string
	level                   ui.Level
	form                    url.Values
}

// walkRoutes takes the table of the pages, so that a new route is walked as soon as it stands there.
func walkRoutes(t *testing.T, forms map[string]url.Values) (list []walkRoute) {
	t.Helper()
	id := 100
	for _, of := range ui.Routes() {
		if strings.Contains(of.Path, "{id}") && of.Method == http.MethodPost {
			id++ // an event of its own
		}
		fill := strings.NewReplacer("{$}", "", "{version}", "1", "{file}", "style.css", "{db}", "orders",
			"{side}", "outbox", "{id}", fmt.Sprint(max(id, 101)), "{topic}", "payments")
		r := walkRoute{of.Method, of.Path, fill.Replace(of.Path), of.Level, forms[of.Path]}
		if r.method == http.MethodPost && r.form == nil {
			t.Errorf("no form does what POST %s is for", r.pattern)
		}
		list = append(list, r)
	}
	return list
}

// walkSeed fills a database so that each form has something to change, and returns the forms by pattern. Sequences
// count the rows that are changed, and those that are written into an audit.
func walkSeed(t *testing.T, db *pgtest.DB) map[string]url.Values {
	t.Helper()
	store, err := pgstore.New(db.Pool, pgstore.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	makeStuck(t, store, "retry", "complete", "free", "all")
	db.Exec(t, `update idempotency_key set operation = 'all' where key = 'all'`)
	const epoch = "5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.2"
	for _, statement := range []string{
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source, tenant,
			topic, key, type, content_type, headers, payload, created_at)
		select 7, g, g < 200, false, 1, 'Message <canary> large', 'MESSAGE_TOO_LARGE', gen_random_uuid(), 's', '',
			case when g < 202 then 'payments' else 'group' || g end, case when g < 200 then '' else 'k' || g end, 'Paid',
			'text/plain', '{"who": "<canary>"}', 'was', now() from generate_series(101, 203) g`,
		`insert into outbox_parked_key (lane, tenant, topic, key, reason, code) select 7, '', topic, key, reason, code
		from outbox_parked where not alone`,
		`insert into outbox_topic (topic, partitions) values ('payments', 3), ('paused', 1)`,
		`insert into outbox_paused_topic (topic, paused_by, reason) values ('paused', 'ann', '<canary>')`,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type, content_type,
			created_at)
		values (1, 6000, 'payments', 1, 6000, false, gen_random_uuid(), '', '', 'k', 'Paid', '', now())`,
		`update outbox_meta set kafka_cluster = 'old'`,
		`insert into outbox_scheduled (due, topic, key, type) values
			('2125-01-02 03:04:05+00', 'payments', 'k', 'Paid'), ('2125-01-02 03:04:05+00', 'reminders', 'k', 'Due')`,
		`insert into outbox_archive (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key, type,
			content_type, payload, created_at)
		values (now() - interval '1 hour', 'e.1', 3, 1, 1, gen_random_uuid(), '', '', 'payments', 'k', 'Paid', '', 'x', now())`,
		`insert into inbox_consumer (consumer_name, floor, window_days, dedup) values ('ledger', now(), 14, 'id'),
			('moved', now(), 14, 'id'), ('retired', now(), 14, 'id'), ('numbers', now(), 14, 'watermark'),
			('offsets', now(), 14, 'offset')`,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at, halted_code,
			halted_reason, updated_at)
		select c, 'payments', 3, 41, 50, now(), w, r, now() - interval '1 hour' from (values ('ledger', 'POISON', '<canary>'),
			('resumed', 'POISON', ''), ('numbers', 'new_numbering', 'its numbering ` + epoch + ` is newer'),
			('offsets', 'offsets_went_back', '')) h (c, w, r)`,
		`insert into inbox_consumer (consumer_name, floor, window_days, dedup) values ('resumed', now(), 14, 'id')
			on conflict do nothing`,
		`insert into inbox_watermark (consumer_name, topic, partition, outbox_id, incarnation, version, lanes, seqs, latest)
		values ('offsets', 'payments', 3, '00000000-0000-0000-0000-000000000000', 0, 1, '{0}', '{40}', 0)`,
		`create sequence walk_rows`, `create sequence walk_audit`,
		fmt.Sprintf(`create function walk() returns trigger language plpgsql as $$ begin
			perform nextval('%[1]s.walk_rows');
			if tg_table_name ~ '_audit' then perform nextval('%[1]s.walk_audit'); end if;
			return null;
		end $$`, db.Schema),
		`do $$ declare r regclass; begin
			for r in select oid from pg_class where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p')
				and not relispartition loop
				execute format('create trigger walk after insert or update or delete on %s for each row
					execute function walk()', r);
			end loop;
		end $$`,
	} {
		db.Exec(t, statement)
	}
	form := func(pairs ...string) url.Values {
		v := url.Values{"reason": {"late <canary>"}}
		for i := 0; i < len(pairs); i += 2 {
			v.Set(pairs[i], pairs[i+1])
		}
		return v
	}
	b64 := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	hash := sha256.Sum256([]byte("was"))
	headers := admin.HeadersSum("text/plain", [][2]string{{"who", "<canary>"}})
	choice, err := json.Marshal(map[string]any{
		"From": time.Now().Add(-24 * time.Hour), "To": time.Now(), "Topic": "payments", "Events": 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	event, group := "/db/{db}/{side}/events/{id}/", func(topic string) url.Values {
		return form("topic", topic, "type", "Paid", "kind", "refused", "code", "MESSAGE_TOO_LARGE", "limit", "1000",
			"until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}
	stuck := func(key string, more ...string) url.Values {
		return form(append([]string{"tenant", "acme", "operation", "payment.create", "key", key}, more...)...)
	}
	of := func(consumer string, more ...string) url.Values {
		return form(append([]string{"consumer", consumer, "topic", "payments", "partition", "3"}, more...)...)
	}
	at := func(key string) url.Values { return form("topic", "payments", "tenant", "", "key", b64(key)) }
	return map[string]url.Values{
		"/db/{db}/replay": form("choice", b64(string(choice))), "/db/{db}/replay/stop": form("id", "1"),
		"/db/{db}/scheduled/cancel":     form("seq", "1", "due", "2125-01-02T03:04:05Z"),
		"/db/{db}/scheduled/cancel-all": form("topic", "reminders"),
		event + "reveal":                form(), event + "release": form(), event + "discard": form(),
		event + "preview": form("was", base64.StdEncoding.EncodeToString([]byte("was")), "payload", "new"),
		event + "edit": form("before", hex.EncodeToString(hash[:]), "after",
			base64.StdEncoding.EncodeToString([]byte("new"))),
		event + "headers/preview":      form("washeaders", "", "wastype", "", "headers", "a=b", "type", ""),
		event + "headers/edit":         form("before", hex.EncodeToString(headers[:]), "headers", "a=b", "type", ""),
		"/db/{db}/{side}/keys/release": at("k200"), "/db/{db}/{side}/keys/discard": at("k201"),
		"/db/{db}/{side}/failures/release": group("group202"), "/db/{db}/{side}/failures/discard": group("group203"),
		"/db/{db}/acknowledge":  form("check", "<canary>", "found", "<canary>", "days", "3"),
		"/db/{db}/topics/pause": form("topic", "payments"), "/db/{db}/topics/resume": form("topic", "paused"),
		"/db/{db}/topics/accept":         form("topic", "payments", "partitions", "4", "anyway", "1"),
		"/db/{db}/topics/accept-cluster": form("cluster", "new"),
		"/db/{db}/topics/discard":        form("topic", "payments", "all", "1"),
		"/db/{db}/inbox/resume":          of("resumed"), "/db/{db}/inbox/skip": of("ledger", "to", "42"),
		"/db/{db}/inbox/accept":         of("numbers", "epoch", epoch),
		"/db/{db}/inbox/move":           of("moved", "to", "watermark"),
		"/db/{db}/inbox/forget-offsets": of("offsets"), "/db/{db}/inbox/retire": of("retired"),
		"/db/{db}/keys/retry":    stuck("retry"),
		"/db/{db}/keys/complete": stuck("complete", "code", "201"),
		"/db/{db}/keys/free":     stuck("free", "sure", "1"),
	}
}

// walkPages are those of relay ui with these flags, and what they log.
func walkPages(t *testing.T, db *pgtest.DB, flags ...string) (*pages, *output) {
	t.Helper()
	var c cli
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: environment{}.get}
	args := append([]string{"ui", "--listen=127.0.0.1:0"}, flags...)
	if _, err := line.Parse(&c, args, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	var log output
	p := &program{log: slog.New(slog.NewJSONHandler(&log, nil)), env: environment{"USER": "ann"}.get}
	g, err := c.UI.open(p, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	base := database{DatabaseURL: secret.Of(db.URL), manyOutboxes: manyOutboxes{several: true}}
	if err := g.show(t.Context(), base, []namedOutbox{{name: "orders", schema: db.Schema}}); err != nil {
		t.Fatal(err)
	}
	return g, &log
}

// tally collects what is wrong, with the number of cells and one of them.
type tally struct {
	first map[string]string
	cells map[string]int
	all   int
}

func newTally() *tally { return &tally{first: map[string]string{}, cells: map[string]int{}} }

func (f *tally) check(right bool, what, cell string, args ...any) {
	if !right {
		if f.cells[what]++; f.cells[what] == 1 {
			f.first[what] = fmt.Sprintf(cell, args...)
		}
	}
}

func (f *tally) report(t *testing.T, least int) {
	t.Helper()
	failed := 0
	for what, n := range f.cells {
		failed += n
		t.Errorf("%s: %d cells, such as %s", what, n, f.first[what])
	}
	t.Logf("%d cells, %d findings in them", f.all, failed)
	if f.all < least {
		t.Errorf("%d cells were seen, want %d", f.all, least)
	}
}

// quiet are routes whose form changes nothing, and why.
var quiet = map[string]string{
	"/db/{db}/replay/stop":                        "no replay runs",
	"/db/{db}/{side}/events/{id}/preview":         "shows what an edit would change",
	"/db/{db}/{side}/events/{id}/headers/preview": "likewise",
}

// TestEveryWayIn: whatever a request looks like, it changes something only for somebody who may, from the pages
// themselves, by POST; what it may not do it is told, and nobody is shown others' markup. What is changed is counted in
// the tables, not taken from the answers.
func TestEveryWayIn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	forms := walkSeed(t, db)
	routes := walkRoutes(t, forms)
	doors := walkDoors(t)
	for _, d := range doors {
		d.Handler, _ = walkPages(t, db, append(d.flags, "--prefix=/ops")...)
	}
	conn := db.Connect(t)
	rows := func() (n, audited int64) {
		if err := conn.QueryRow(t.Context(), `select (select last_value + is_called::int from walk_rows),
			(select last_value + is_called::int from walk_audit)`).Scan(&n, &audited); err != nil {
			t.Fatal(err)
		}
		return n, audited
	}
	found := newTally()
	before, audited := rows()
	ask := func(d *walkDoor, r walkRoute, name string, form url.Values,
		changes ...func(*asked),
	) *httptest.ResponseRecorder {
		a := asked{method: r.method, target: "/ops" + r.target, host: "localhost:9188", from: "127.0.0.1:1"}
		if r.method == http.MethodPost {
			a.kind, a.body = "application/x-www-form-urlencoded", form.Encode()
		}
		for _, change := range changes {
			change(&a)
		}
		found.all++
		w := a.send(d)
		cell := fmt.Sprintf("%s, %s %s, %s", d.name, r.method, r.target, name)
		body := w.Body.String()
		found.check(w.Code < 500, "a 5xx", "%s: %d %s", cell, w.Code, body)
		found.check(!strings.Contains(body, "<canary") || !strings.Contains(w.Header().Get("Content-Type"), "html"),
			"markup", "%s: %s", cell, body)
		text := regexp.MustCompile(`(?s)<[^>]*>`).ReplaceAllString(body, " ")
		found.check(w.Code < 400 || len(strings.Fields(text)) > 3 || a.method == http.MethodHead ||
			a.target == "*", "a refusal that says nothing", "%s: %d %s", cell, w.Code, text)
		now, _ := rows()
		found.check(now == before || name == "all is right", "a change", "%s: %d rows, %d", cell, now-before, w.Code)
		if name != "all is right" {
			before = now
		}
		return w
	}
	ways, each := waysIn(), draw.Size(12, 1) // of so many routes each way at each door is seen at one
	first := int(draw.Seed(t) % uint64(each))
	for i, r := range routes {
		unreasoned := maps.Clone(r.form)
		delete(unreasoned, "reason")
		for j, d := range doors {
			best := d.principals[len(d.principals)-1]
			for _, p := range d.principals {
				form := r.form
				if p.level >= r.level {
					form = unreasoned
				}
				w := ask(d, r, p.name, form, p.change)
				refused := w.Code == http.StatusForbidden || w.Code == http.StatusUnauthorized
				found.check(refused == (p.level < r.level) || p.name == "scoped", "a level", "%s, %s %s, %s: %d",
					d.name, r.method, r.target, p.name, w.Code)
			}
			usual := ask(d, r, "nothing more", unreasoned, best.change).Code
			for k, w := range ways {
				if (first+i+j+k)%each > 0 {
					continue
				}
				want := w.get
				if r.method == http.MethodPost {
					want = w.post
				}
				if own := map[string]verdict{"local": w.local, "proxied": w.proxied}[d.name]; own != either {
					want = own
				}
				form := unreasoned
				if want == stays {
					form = r.form
				}
				got := ask(d, r, w.name, form, best.change, w.change).Code
				right := want == either || want == comesIn && got == usual || want == stays && got >= 300 && got < 500
				found.check(right, w.name, "%s, %s %s: %d, and %d without", d.name, r.method, r.target, got, usual)
			}
		}
		if r.method != http.MethodPost {
			continue
		}
		d := doors[len(doors)-1]
		w := ask(d, r, "all is right", r.form, d.principals[len(d.principals)-1].change)
		if r.pattern == "/db/{db}/replay" {
			pgtest.AwaitSQL(t, db, `select exists (select from outbox_audit where action = 'replay ended')`)
		}
		now, rowsOfAudit := rows()
		want := int64(1)
		switch {
		case quiet[r.pattern] != "":
			want = 0
		case r.pattern == "/db/{db}/replay":
			want = 2 // its end, too
		}
		if rowsOfAudit-audited != want || (now > before) != (want > 0) {
			t.Errorf("POST %s: %d rows, %d of an audit, %d %s", r.target, now-before, rowsOfAudit-audited, w.Code,
				regexp.MustCompile(`(?s)<[^>]*>|\s+`).ReplaceAllString(w.Body.String(), " "))
		}
		before, audited = now, rowsOfAudit
	}
	found.report(t, draw.Size(4_000, 25_000))
}

// TestEveryWayToHealth: the endpoint answers reads only, whatever they look like, and shows memory's content to this
// machine only.
func TestEveryWayToHealth(t *testing.T) {
	t.Parallel()
	var source []byte
	for _, name := range []string{"../../process/health.go", "../internal/service/pprof.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	h := service.Pprof(process.Health{Metrics: promhttp.HandlerFor(newRegistry(), promhttp.HandlerOpts{})}.Handler())
	found := newTally()
	handled := regexp.MustCompile(`mux\.Handle(?:Func)?\("(GET )?([^"]+)"`)
	for _, m := range handled.FindAllStringSubmatch(string(source), -1) {
		for _, w := range waysIn() {
			want, pprof := w.get, strings.HasPrefix(m[2], "/debug/")
			if pprof {
				want = w.local
			}
			if m[2] == "/" || want == either || strings.HasPrefix(w.name, "query") { // it takes no query
				continue
			}
			a := asked{method: http.MethodGet, target: m[2], host: "localhost:9187", from: "127.0.0.1:1"}
			w.change(&a)
			found.all++
			got := a.send(h)
			found.check((got.Code == http.StatusOK) == (want == comesIn) && got.Code < 500, w.name, "%s: %d %s", m[2],
				got.Code, got.Body)
		}
	}
	found.report(t, 500)
}

// TestEveryPrefix: the pages are where their log says.
func TestEveryPrefix(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	for _, prefix := range []string{"", "/", "/x", "/x/", "/x.y/z-1"} {
		g, log := walkPages(t, db, "--prefix="+prefix)
		at := regexp.MustCompile(`"url":"http://[^/]+([^"]+)"`).FindStringSubmatch(log.String())
		if at == nil {
			t.Fatal(log.String())
		}
		a := asked{method: http.MethodGet, target: at[1], host: "localhost", from: "127.0.0.1:1"}
		if w := a.send(g); w.Code != http.StatusOK {
			t.Errorf("%q: %s: %d %s", prefix, at[1], w.Code, w.Body)
		}
	}
	for _, prefix := range []string{"x", "//", "/x//y", "/..", "/x/../y", "/a b", "/%2f", "/x?y", "/{db}"} {
		env := settings(db).with("USER", "ann")
		code, _, stderr := command(t, env, "ui", "--listen=127.0.0.1:0", "--prefix="+prefix)
		if code != codeUsage || !strings.Contains(stderr, "--prefix is") {
			t.Errorf("%q: exit code %d: %s", prefix, code, stderr)
		}
	}
}
