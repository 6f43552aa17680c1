package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// serveUI starts `relay ui` in this process, and stops it at the end of the test.
func serveUI(t *testing.T, env environment, args ...string) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var errs output
	done, code := make(chan struct{}), 0
	go func() {
		defer close(done)
		code = run(ctx, append([]string{"ui", "--listen=127.0.0.1:0"}, args...), env.get, io.Discard, &errs)
	}()
	i := &instance{t: t, output: errs.String, done: done, code: func() int { return code }, signal: cancel}
	t.Cleanup(func() {
		cancel()
		if got := i.end(); got != codeOK {
			t.Errorf("relay ui ended with %d: %s", got, i.output())
		}
	})
	i.base = i.awaitLine(pagesAt)
	return i
}

var pagesAt = regexp.MustCompile(`"msg":"pages","url":"(http://[^/"]+)/`)

// request requests a page, with a request that change may modify, and returns status and body.
func (i *instance) request(method, path string, form url.Values, change func(*http.Request)) (int, string) {
	i.t.Helper()
	r, err := http.NewRequestWithContext(i.t.Context(), method, i.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		i.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	change(r)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		i.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// awaitShown waits until a page shows something: one whose database has not answered within seconds says so instead.
func (i *instance) awaitShown(path, what string, change func(*http.Request)) (page string) {
	i.t.Helper()
	pgtest.Await(i.t, path+" shows "+what, func() (bool, error) {
		status, text := i.request(http.MethodGet, path, nil, change)
		page = text
		if status != http.StatusOK {
			return false, fmt.Errorf("%d %s", status, text)
		}
		return strings.Contains(text, what), nil
	})
	return page
}

// TestUI: the pages of a real outbox, a command, and its row in the audit.
func TestUI(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	fill(t, db, "orders", 3)
	env := settings(db).with("USER", "ann", "RELAY_SCHEMA", db.Schema)
	delete(env, "RELAY_KAFKA_BROKERS")
	i := serveUI(t, env, "--prefix=/ops")
	as := func(*http.Request) {}
	if page := i.awaitShown("/ops/", "3</b> events waiting", as); !strings.Contains(page, "ann") {
		t.Error(page)
	}
	name := strings.TrimPrefix(must(url.Parse(db.URL)).Path, "/")
	form := url.Values{"topic": {"orders"}, "reason": {"late"}}
	status, page := i.request(http.MethodPost, "/ops/db/"+name+"/topics/pause", form, as)
	if status != http.StatusOK || !strings.Contains(page, "Topic orders is paused") {
		t.Errorf("%d %s", status, page)
	}
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_audit where operator = 'ann'`); n != 1 {
		t.Errorf("the audit has %d rows of the pause", n)
	}
	for _, path := range []string{"/healthz", "/readyz"} { // without a login
		probe := func(r *http.Request) { r.Host = "10.0.0.7" }
		if status, text := i.request(http.MethodGet, path, nil, probe); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	// A page of another site whose name resolves to this machine's address.
	status, page = i.request(http.MethodGet, "/ops/", nil, func(r *http.Request) { r.Host = "evil.example" })
	if status != http.StatusForbidden || strings.Contains(page, "Outbox") {
		t.Errorf("under another name: %d %s", status, page)
	}
}

func must(u *url.URL, err error) *url.URL {
	if err != nil {
		panic(err)
	}
	return u
}

// TestUIUsers: a user's password grants the user's level, from the current file; a proxy's header counts only if the
// proxy has sent it.
func TestUIUsers(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	hash, err := bcrypt.GenerateFromPassword([]byte(canary), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(t.TempDir(), "users")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf("# people\nann:%s:operate\nbob:%[1]s:view\ncarl::operate\ndan:%[1]s:view:payments,b.*\n", hash))
	i := serveUI(t, settings(db).with("RELAY_SCHEMA", db.Schema), "--users="+users, "--proxy-header=X-User")
	login := func(name, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(name, password) }
	}
	named := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-User", name) }
	}
	for name, c := range map[string]struct {
		as   func(*http.Request)
		want int
		says string
	}{
		"nobody":             {func(*http.Request) {}, http.StatusUnauthorized, ""},
		"a wrong password":   {login("ann", "x"), http.StatusUnauthorized, ""},
		"a wrong name":       {login("eve", canary), http.StatusUnauthorized, ""},
		"no password":        {login("carl", ""), http.StatusUnauthorized, ""},
		"ann":                {login("ann", canary), http.StatusOK, "ann</span> <small>operate"},
		"bob":                {login("bob", canary), http.StatusOK, "bob</span> <small>view"},
		"ann again":          {login("ann", canary), http.StatusOK, "ann"},
		"carl by proxy":      {named("carl"), http.StatusOK, "carl</span> <small>operate"},
		"dora by proxy":      {named("dora"), http.StatusOK, "dora</span> <small>view"},
		"carl in other case": {named("Carl"), http.StatusForbidden, "write both in the same case"},
		"carl and dora": {func(r *http.Request) {
			r.Header.Add("X-User", "carl")
			r.Header.Add("X-User", "dora")
		}, http.StatusForbidden, "names several users"},
	} {
		if status, page := i.request(http.MethodGet, "/topics", nil, c.as); status != c.want ||
			!strings.Contains(page, c.says) {
			t.Errorf("%s: %d %s", name, status, page)
		}
	}
	for name, want := range map[string]int{"bob": http.StatusOK, "dan": http.StatusForbidden} {
		if status, _ := i.request(http.MethodGet, "/consumers", nil, login(name, canary)); status != want {
			t.Errorf("%s, on a page of all topics: %d", name, status)
		}
	}
	write("bob:" + string(hash) + ":view\nlonger: \n")
	if status, _ := i.request(http.MethodGet, "/topics", nil, login("bob", canary)); status != http.StatusForbidden {
		t.Errorf("a file that cannot be read: %d", status)
	}
	write("bob:" + string(hash) + ":view\nBob::operate\n")
	if status, _ := i.request(http.MethodGet, "/topics", nil, login("bob", canary)); status != http.StatusForbidden {
		t.Errorf("two users of one name but for its case: %d", status)
	}
	write("bob:" + string(hash) + ":view\n")
	if status, _ := i.request(http.MethodGet, "/topics", nil, login("ann", canary)); status != http.StatusUnauthorized {
		t.Errorf("after ann was removed: %d", status)
	}
	if strings.Contains(i.output(), canary) || strings.Contains(i.output(), string(hash)) {
		t.Errorf("the log has a password or its hash: %s", i.output())
	}
}

// TestUIRefuses: relay ui is not opened to other machines by accident.
func TestUIRefuses(t *testing.T) {
	t.Parallel()
	env := environment{"RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none"}
	bad := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(bad, []byte("ann:"+canary+":operate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, says := range map[string]string{
		"--listen=0.0.0.0:0":                  "is open to others",
		"--listen=:0":                         "is open to others",
		"--listen=[::]:0":                     "is open to others",
		"--listen=9188":                       "want host:port",
		"--listen=127.0.0.1:0 --users=/none":  "--users",
		"--users=" + bad:                      "none of bcrypt's",
		"--proxy-header=X --proxy-from=here":  "--proxy-from",
		"--proxy-header=X --proxy-level=boss": "proxy-level",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var errs output
		code := run(ctx, append([]string{"ui"}, strings.Fields(args)...), env.get, io.Discard, &errs)
		cancel()
		if code != codeUsage || !strings.Contains(errs.String(), says) || strings.Contains(errs.String(), canary) {
			t.Errorf("%s: %d %s", args, code, errs.String())
		}
	}
}

// TestTrusted: a name in a header counts only if the proxy has sent it.
func TestTrusted(t *testing.T) {
	t.Parallel()
	c := pageFlags{
		Listen: "10.0.0.1:80", ProxyHeader: "X-User", ProxyFrom: []string{"10.1.0.0/16"}, ProxyLevel: "operate",
	}
	authorize, err := c.door(&program{}, "")
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]bool{"10.1.2.3:4": true, "10.2.2.3:4": false, "[::ffff:10.1.0.1]:4": true} {
		r := http.Request{RemoteAddr: from, Header: http.Header{"X-User": {"ann"}}}
		if who, err := authorize(&r); (err == nil && who.Name == "ann") != want {
			t.Errorf("%s: %v %v", from, who, err)
		}
	}
}

// pagesOf are the pages that a relay serves.
func pagesOf(relay *instance) *instance {
	shown := *relay
	shown.base = shown.awaitLine(pagesAt)
	return &shown
}

// TestRunServesPages: `relay run` serves the pages below --ui-prefix, with the same access control, over connections of
// their own.
func TestRunServesPages(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 1)
	hash, err := bcrypt.GenerateFromPassword([]byte(canary), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, fmt.Appendf(nil, "ann:%s:operate\n", hash), 0o600); err != nil {
		t.Fatal(err)
	}
	env := settings(db, kafkatest.Brokers(t)...).with("RELAY_SCHEMA", db.Schema, "RELAY_UI", "true",
		"RELAY_UI_LISTEN", "127.0.0.1:0", "RELAY_UI_PREFIX", "/ops", "RELAY_UI_USERS", users)
	relay := inProcess(t, env)
	relay.awaitPage("/readyz", http.StatusOK)
	shown := pagesOf(relay)
	fill(t, db, topic, 10)
	awaitDrained(t, db)
	nobody := func(*http.Request) {}
	if status, _ := shown.request(http.MethodGet, "/ops/", nil, nobody); status != http.StatusUnauthorized {
		t.Errorf("without a password: %d", status)
	}
	ann := func(r *http.Request) { r.SetBasicAuth("ann", canary) }
	name := strings.TrimPrefix(must(url.Parse(db.URL)).Path, "/")
	form := url.Values{"topic": {topic}, "reason": {"late"}}
	status, page := shown.request(http.MethodPost, "/ops/db/"+name+"/topics/pause", form, ann)
	if status != http.StatusOK || !strings.Contains(page, "Topic "+topic+" is paused") {
		t.Fatalf("%d %s", status, page)
	}
	shown.awaitShown("/ops/topics", topic, ann)
	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d: %s", code, relay.output())
	}
	if strings.Contains(relay.output(), canary) {
		t.Error("the log has the password")
	}
}

// TestRunOfManyServesPages: the pages show the listed outboxes, and a wrong entry does not affect the others.
func TestRunOfManyServesPages(t *testing.T) {
	t.Parallel()
	one := outboxDB(t)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	writeOutboxes(t, path, outboxAt("tenant one", one.URL, "  schema: "+one.Schema+"\n"),
		outboxAt("wrong", one.URL, "  schema: N o\n"))
	relay := inProcess(t, settings(one, deadBroker).with("RELAY_CONFIG", path, "RELAY_DATABASE_URL", "",
		"RELAY_UI", "true", "RELAY_UI_LISTEN", "127.0.0.1:0", "USER", "ann"))
	shown := pagesOf(relay)
	pgtest.Await(t, "the pages show the outbox", func() (bool, error) {
		status, page := shown.request(http.MethodGet, "/", nil, func(*http.Request) {})
		return status == http.StatusOK && strings.Contains(page, ">tenant-one<") && !strings.Contains(page, ">wrong<"),
			nil
	})
}

// TestPagesFollowTheList: a new list replaces the first, and outboxes of one database share their connections.
func TestPagesFollowTheList(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	p := &program{log: slog.New(slog.DiscardHandler), env: environment{"USER": "ann"}.get}
	g, err := pageFlags{Listen: "127.0.0.1:0", ProxyLevel: "view"}.open(p, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	names := func() []string {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		var found []string
		for _, m := range regexp.MustCompile(`<h2>(?:<a [^>]+>)?([^<]+)</`).FindAllStringSubmatch(w.Body.String(), -1) {
			found = append(found, m[1])
		}
		return found
	}
	if found := names(); found != nil {
		t.Errorf("before the first list: %q", found)
	}
	d := database{DatabaseURL: secret.Of(db.URL), manyOutboxes: manyOutboxes{several: true}}
	of := func(name string) namedOutbox { return namedOutbox{name: name, schema: db.Schema} }
	for _, list := range [][]namedOutbox{{of("a"), of("b c"), of("b-c")}, {of("d")}, {}, {of("a")}} {
		var want []string
		for _, o := range list {
			want = append(want, map[string]string{"b c": "b-c", "b-c": "b-c-2"}[o.name])
			if want[len(want)-1] == "" {
				want[len(want)-1] = o.name
			}
		}
		before := g.current.Load()
		if err := g.show(t.Context(), d, list); (err != nil) != (len(list) == 0) {
			t.Fatal(err)
		}
		shown := g.current.Load()
		if shown == before {
			t.Errorf("%q: the pages are the old ones", want)
		}
		if found := names(); !slices.Equal(found, want) {
			t.Errorf("%q are shown, want %q", found, want)
		}
		if err := g.show(t.Context(), d, slices.Clone(list)); err != nil || g.current.Load() != shown {
			t.Errorf("%q: the same list starts new pages: %v", want, err)
		}
	}
	open, closeAll := g.databases(d, []namedOutbox{of("a"), of("b")})
	defer closeAll()
	if len(open) != 2 || open[0].Pool != open[1].Pool {
		t.Error("two outboxes of one database have pools of their own")
	}
}

// TestRunRefusesOpenPages: access is as strict as in relay ui, and the error names the flags of run.
func TestRunRefusesOpenPages(t *testing.T) {
	t.Parallel()
	env := environment{
		"RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none", "RELAY_KAFKA_BROKERS": deadBroker, "RELAY_LISTEN": "off",
		"RELAY_UI": "true", "RELAY_UI_LISTEN": "0.0.0.0:0",
	}
	code, _, stderr := command(t, env, "run")
	if code != codeUsage || !strings.Contains(stderr, "--ui-listen=0.0.0.0:0 is open to others: --ui-users") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestLoginsWaitInTurn: guesses hold up nobody for long, and tell no names by the time that a refusal takes.
func TestLoginsWaitInTurn(t *testing.T) {
	t.Parallel()
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "users")
	line := "ann:" + string(hash) + ":operate\n"
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &usersFile{path: path}
	if _, err := f.read(); err != nil {
		t.Fatal(err)
	}
	if cost, err := bcrypt.Cost(f.nobody); err != nil || cost != bcrypt.MinCost {
		t.Errorf("unknown names cost %d, %v: the file's are of %d", cost, err, bcrypt.MinCost)
	}
	leave, err := f.slow.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// One comparison runs: as many wait as may, and the next one is told so at once.
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range cap(f.slow.waits) {
		waiting.Go(func() { _, _ = f.matches(ctx, "eve", "", "guess") })
	}
	for len(f.slow.waits) < cap(f.slow.waits) {
		runtime.Gosched()
	}
	if _, err := f.matches(t.Context(), "eve", "", "guess"); !errors.Is(err, errBusy) {
		t.Errorf("one more: %v", err)
	}
	cancel() // the clients of the guesses are gone
	waiting.Wait()
	leave()
	if ok, err := f.matches(t.Context(), "ann", string(hash), "right"); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	// Another user is added: who has proven the password need not wait.
	if err := os.WriteFile(path, []byte(line+"bob::view\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.read(); err != nil {
		t.Fatal(err)
	}
	if leave, err = f.slow.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer leave()
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if ok, err := f.matches(ctx, "ann", string(hash), "right"); !ok || err != nil {
		t.Errorf("after the file has changed: %t, %v", ok, err)
	}
}
