package browser

import (
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// table is the table of routes.
type table struct {
	mux  *http.ServeMux
	list []string // such as "GET /chain"
}

func routes(t *testing.T) table {
	t.Helper()
	r := table{mux: http.NewServeMux()}
	for _, of := range ui.Routes() {
		r.list = append(r.list, of.Method+" "+of.Path)
		r.mux.Handle(of.Method+" "+prefix+of.Path, http.NotFoundHandler())
	}
	return r
}

// of is the route of an address, as the table has it; empty: there is none.
func (r table) of(method, address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	_, pattern := r.mux.Handler(&http.Request{Method: method, URL: u})
	return strings.Replace(pattern, prefix, "", 1)
}

// all are the routes of a method, those of static files left out.
func (r table) all(method string) (list []string) {
	for _, route := range r.list {
		if strings.HasPrefix(route, method+" ") && !strings.Contains(route, "/static/") {
			list = append(list, route)
		}
	}
	return list
}

var number = regexp.MustCompile(`/\d+`)

// kind of an address: of those that differ by an event's number or by what a filter says, one is like the other.
func kind(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	var names []string
	for name := range u.Query() {
		names = append(names, name)
	}
	slices.Sort(names)
	return number.ReplaceAllString(u.Path, "/#") + "?" + strings.Join(names, "&")
}

// walk shows every kind of page that links lead to, and no more than so many of a route; those that it is given, first.
// What its caller makes go away may be missed.
func (b *tab) walk(r table, most int, first ...string) iter.Seq2[string, string] {
	return func(yield func(address, route string) bool) { b.visit(r, most, append(first, "/"), yield) }
}

func (b *tab) visit(r table, most int, first []string, yield func(address, route string) bool) {
	b.t.Helper()
	var queue []string
	queued := map[string]int{}
	for _, path := range first {
		queue, queued[b.site.url+path] = append(queue, b.site.url+path), 1
	}
	for len(queue) > 0 {
		address := queue[0]
		queue = queue[1:]
		path, route := strings.TrimPrefix(address, b.site.url), r.of(http.MethodGet, address)
		status := b.loads(path, chromedp.Navigate(address))
		if status == http.StatusNotFound && b.changes {
			continue
		}
		if status != http.StatusOK {
			b.t.Errorf("%s: %d\n%s", path, status, b.text())
		}
		var links []string
		b.js(`[...document.links].map(a => a.href)`, &links)
		for _, link := range links {
			if link, _, _ = strings.Cut(link, "#"); !b.site.has(link) {
				continue
			}
			to := r.of(http.MethodGet, link)
			if to == "" {
				b.t.Errorf("%s links to %s, which is no page", path, link)
				continue
			}
			// One of a kind from each kind of page.
			kindHere := kind(link) + " from " + kind(address)
			if queued[link] == 0 && queued[kindHere] == 0 && queued[kind(link)] < 2 && queued[to] < most {
				queue = append(queue, link)
				queued[link]++
				queued[kindHere]++
				queued[kind(link)]++
				queued[to]++
			}
		}
		if !yield(path, route) {
			return
		}
	}
}

// TestPages: every page of the table is led to, reads well, also on a phone, and has nothing that keeps people out.
func TestPages(t *testing.T) {
	t.Parallel()
	away, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	s, r := inTrouble(t, ui.Database{Name: "away", Pool: away}), routes(t)
	b := s.tab(t, "ann", ui.Operate)
	reached := map[string]bool{}
	n := draw.Seed(t)
	for address, route := range b.walk(r, 5) {
		reached[route] = true
		if n++; draw.Nightly() || n%2 == 0 {
			b.examine(address)
		}
	}
	for _, route := range r.all(http.MethodGet) {
		if !reached[route] && route != "GET /db/{db}/replay/plan" { // a form leads there
			t.Errorf("no page leads to %s: link to it, and give inTrouble what is shown there", route)
		}
	}
	if status := b.loads("nothing", chromedp.Navigate(s.url+"/nothing")); status != http.StatusNotFound {
		t.Errorf("a page that is not there: %d", status)
	}
}

// overflow names what is wider than the page; empty: nothing. Text may be wider than the element that has it.
const overflow = `(() => {
	const page = document.documentElement;
	if (page.scrollWidth <= page.clientWidth) return "";
	const right = n => { const r = document.createRange(); r.selectNodeContents(n); return r.getBoundingClientRect().right; };
	const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, nav, pre") &&
		(e.getBoundingClientRect().right > page.clientWidth || right(e) > page.clientWidth));
	return page.scrollWidth + " of " + page.clientWidth + ": " +
		wide.slice(-4).map(e => e.outerHTML.slice(0, 200)).join("\n") + (wide.length ? "" : page.innerHTML);
})()`

// aside names the tables with something out of sight, to the right; empty: there are none.
const aside = `[...document.querySelectorAll(".scroll")].filter(s => s.scrollWidth > s.clientWidth).map(s =>
	s.getAttribute("aria-label") + ": " + s.scrollWidth + " of " + s.clientWidth).join(", ")`

// looks are the themes that a page is examined in, with axe's rules for each.
func looks() [][2]string {
	light := [2]string{"light", allRules}
	if !draw.Nightly() {
		return [][2]string{light}
	}
	return [][2]string{{"dark", ofColours}, light}
}

// examine looks at a page as it is now, with all that opens on it open.
func (b *tab) examine(name string) {
	b.t.Helper()
	var n int
	if b.js(`document.querySelectorAll("h1").length`, &n); n != 1 {
		b.t.Errorf("%s has %d headings of the first level", name, n)
	}
	b.js(`document.querySelectorAll("details").forEach(d => { d.open = true })`, nil)
	var wide string
	b.size(phone)
	if b.js(overflow, &wide); wide != "" {
		b.t.Errorf("%s is too wide for a phone: %s", name, wide)
	}
	if b.js(aside, &wide); wide != "" {
		b.t.Errorf("%s hides something of tables on a phone: %s", name, wide)
	}
	b.size(desktop)
	if b.js(overflow, &wide); wide != "" {
		b.t.Errorf("%s is too wide: %s", name, wide)
	}
	if b.js(aside, &wide); wide != "" {
		b.t.Errorf("%s hides something of tables: %s", name, wide)
	}
	for _, look := range looks() {
		b.theme(look[0])
		for _, violation := range b.axe(look[1]) {
			b.t.Errorf("%s, %s: %s", name, look[0], violation)
		}
	}
}

// TestLongWords: names of slots, databases and consumers are words of up to 63 characters and more, and a phone shows
// them. The slot is on a server of its own, for the doctor of each neighbour names it.
func TestLongWords(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	orders, ledger := server.Database(t, migrations.Outbox), server.Database(t, migrations.Inbox)
	long := strings.Repeat("m", 63)
	orders.Exec(t, `select pg_create_physical_replication_slot($1, true)`, long)
	orders.Exec(t, `select pg_create_physical_replication_slot($1, true)`, "effectonce_"+long[:52])
	ledger.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ($1, now(), 14)`, long)
	s := serve(t, ui.Config{}, of("orders", orders), of("ledger", ledger))
	b := s.tab(t, "ann", ui.Operate)
	for _, path := range []string{"/db/orders", "/db/ledger", "/doctor"} {
		b.open(path)
		// A page that is coming says nothing yet.
		b.awaits("the doctor's findings", `document.readyState === "complete" &&
			(document.body.innerText.includes("The doctor is looking at it.") ? location.reload() : true)`)
		b.js(`document.querySelectorAll("details").forEach(d => { d.open = true })`, nil)
		b.wants(long)
		b.examine(path)
	}
}

// TestExaminationFinds: what the other tests look for they would find.
func TestExaminationFinds(t *testing.T) {
	t.Parallel()
	s := serve(t, ui.Config{}, of("orders", outboxDB(t)))
	b := s.tab(t, "ann", ui.Operate)
	b.open("/")
	b.js(`document.querySelector("main").append(document.createElement("input"));
		document.querySelector("footer").style.color = "#888";
		document.querySelector("h2").style.width = "3000px";
		document.querySelector("main ol").className = "scroll"; document.querySelector("main li").style.width = "3000px"`, nil)
	var wide string
	if b.js(overflow, &wide); !strings.Contains(wide, "<h2") {
		t.Errorf("what is too wide is not found: %q", wide)
	}
	if b.js(aside, &wide); !strings.Contains(wide, " of ") {
		t.Errorf("what a table hides is not found: %q", wide)
	}
	found := strings.Join(b.axe(allRules), "\n")
	for _, rule := range []string{"label (", "color-contrast ("} {
		if !strings.Contains(found, rule) {
			t.Errorf("axe does not find %s: %s", rule, found)
		}
	}
	if found = strings.Join(b.axe(ofColours), "\n"); !strings.HasPrefix(found, "color-contrast (") {
		t.Errorf("of colours axe finds %s", found)
	}
	b.js(`console.error("broken"); setTimeout(() => { throw new Error("thrown") });
		fetch("https://elsewhere.example/").catch(() => 0).then(() => { // timers go off in order
			setTimeout(() => { window.asked = true });
		})`, nil)
	b.awaits("an answer", "window.asked === true")
	heard := strings.Join(b.forgive(), "\n")
	for _, what := range []string{"broken", "thrown", "violates the following Content Security Policy"} {
		if !strings.Contains(heard, what) {
			t.Errorf("nobody hears %q: %s", what, heard)
		}
	}
}
