package browser

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// done are the verbs, all of them, and what a page says of the change, or of the step after it.
var done = map[string]string{
	"POST /db/{db}/{side}/events/{id}/reveal":          `"payment": "p-20931"`,
	"POST /db/{db}/{side}/events/{id}/preview":         "Its id, topic, key and type stay.",
	"POST /db/{db}/{side}/events/{id}/edit":            "The payload is changed.",
	"POST /db/{db}/{side}/events/{id}/headers/preview": "Its id, topic, key, type and payload stay.",
	"POST /db/{db}/{side}/events/{id}/headers/edit":    "The headers are changed",
	"POST /db/{db}/{side}/events/{id}/release":         "is released",
	"POST /db/{db}/{side}/events/{id}/discard":         "given up for good.",
	"POST /db/{db}/{side}/keys/release":                "of its list, in order.",
	"POST /db/{db}/{side}/keys/discard":                "given up for good.",
	"POST /db/{db}/{side}/failures/release":            "released:",
	"POST /db/{db}/{side}/failures/discard":            "given up for good.",
	"POST /db/{db}/acknowledge":                        "It is acknowledged",
	"POST /db/{db}/topics/pause":                       "is paused",
	"POST /db/{db}/topics/resume":                      "goes on",
	"POST /db/{db}/topics/accept":                      "is pinned to 13 partitions.",
	"POST /db/{db}/topics/accept-cluster":              "is pinned to Kafka cluster the-new-one.",
	"POST /db/{db}/topics/discard":                     "given up for good.",
	"POST /db/{db}/inbox/resume":                       "resumes within seconds",
	"POST /db/{db}/inbox/skip":                         "goes on at offset ",
	"POST /db/{db}/inbox/accept":                       "is accepted.",
	"POST /db/{db}/inbox/move":                         "deduplicates by watermark.",
	"POST /db/{db}/inbox/forget-offsets":               "The offsets of payments are forgotten.",
	"POST /db/{db}/inbox/retire":                       "is retired.",
	"POST /db/{db}/scheduled/cancel":                   "will not be published.",
	"POST /db/{db}/scheduled/cancel-all":               "will not be published.",
	"GET /db/{db}/replay/plan":                         "Publish them once more",
	"POST /db/{db}/replay":                             "It runs.",
	"POST /db/{db}/replay/stop":                        "It has stopped after",
	"POST /db/{db}/keys/retry":                         "once more",
	"POST /db/{db}/keys/complete":                      "It is completed",
	"POST /db/{db}/keys/free":                          "The key is free",
}

// leads are the verbs whose answer has the next one.
var leads = map[string][]string{
	"POST /db/{db}/{side}/events/{id}/reveal": {
		"POST /db/{db}/{side}/events/{id}/preview", "POST /db/{db}/{side}/events/{id}/headers/preview",
	},
	"POST /db/{db}/{side}/events/{id}/preview":         {"POST /db/{db}/{side}/events/{id}/edit"},
	"POST /db/{db}/{side}/events/{id}/headers/preview": {"POST /db/{db}/{side}/events/{id}/headers/edit"},
	"GET /db/{db}/replay/plan":                         {"POST /db/{db}/replay"},
}

// typed is what people write into a field, by its name. The others have a value already, or take any text.
var typed = map[string]string{
	"code": "201", "topic": "payments", "from": "2020-01-01", "rate": "1", "partitions": "13",
	"cluster": "the-new-one", "epoch": numbering, "payload": " ", "headers": "\nnote=mended\n",
}

// form is one of a page that changes something, or is a step to that. N is its place among them.
type form struct {
	Method, Action string
	N              int
}

// ofVerbs are all forms but filters and searches.
const ofVerbs = `[...document.querySelectorAll("form[method=post], .verb form")]`

func (b *tab) forms() (list []form) {
	b.t.Helper()
	b.js(ofVerbs+`.map((f, i) => ({Method: f.method.toUpperCase(), Action: f.action, N: i}))`, &list)
	return list
}

// takeUp marks a form and opens it, as a person does who clicks its verb.
func (b *tab) takeUp(f form) {
	b.t.Helper()
	b.js(fmt.Sprintf(`(() => {
		const form = `+ofVerbs+`[%d];
		form.id = "taken";
		const details = form.closest("details");
		if (details && !details.open) details.querySelector("summary").id = "closed";
	})()`, f.N), nil)
	if b.count("#closed") > 0 {
		b.click("#closed")
	}
}

// complete fills in what a form wants, and its reason.
func (b *tab) complete(reason string) {
	b.t.Helper()
	var names []string
	b.js(`[...document.querySelectorAll("#taken :is(input:not([type=hidden]), textarea:not([hidden]))")].filter(e =>
		!e.validity.valid || e.tagName === "TEXTAREA" || e.name === "rate").map((e, i) => {
			e.classList.add("wanted"); e.dataset.at = i;
			return e.name;
		})`, &names)
	for i, name := range names {
		at, text := fmt.Sprintf(`.wanted[data-at="%d"]`, i), typed[name]
		if name == "reason" {
			text = reason
		}
		if b.count(at+"[type=checkbox]") > 0 {
			b.click(at)
		} else {
			b.fill(at, text)
		}
	}
	var open []string
	if b.js(`[...document.querySelectorAll("#taken :invalid")].map(e => e.name)`, &open); len(open) > 0 {
		b.t.Fatalf("what is to be typed into %q? Say so in typed.", open)
	}
}

// clerk clicks each verb once.
type clerk struct {
	*tab
	r        table
	clicked  map[string]bool
	reasons  []string
	examined bool // an answer that says what was done
}

// wanted: it was not clicked yet, or leads to one that was not.
func (c *clerk) wanted(route string) bool {
	return done[route] != "" && (!c.clicked[route] || slices.ContainsFunc(leads[route], c.wanted))
}

// try sends a form, first without a reason.
func (c *clerk) try(from string, f form) {
	c.t.Helper()
	route, changes := c.r.of(f.Method, f.Action), f.Method == http.MethodPost
	again := c.clicked[route]
	c.clicked[route] = true
	c.takeUp(f)
	if changes && c.count("#taken input[name=reason][required], #taken input[name=reason][value]") != 1 {
		c.t.Errorf("%s: %s asks for no reason", from, route)
	}
	// Without one the browser sends nothing, and says what is missing.
	if c.count("#taken:invalid") > 0 && !again {
		c.click("#taken button")
		c.awaits("the field that is missing", `document.activeElement.matches("#taken :invalid")`)
	}
	reason := fmt.Sprintf("incident %d, %s", 4000+len(c.reasons), route)
	c.complete(reason)
	if changes {
		c.js(`document.querySelector("#taken [name=reason]").value`, &reason) // a second step has that of the first
	}
	if status := c.press("#taken button:not([type=button])"); status != http.StatusOK {
		c.t.Errorf("%s: %s: %d\n%s", from, route, status, c.text())
		return
	}
	c.wants(done[route])
	over := c.count(".notice.ok[role=status]") > 0
	if over || strings.HasSuffix(route, "/reveal") {
		c.reasons = append(c.reasons, reason)
	}
	if !over && len(c.forms()) == 0 { // what is revealed of an event that is on its way cannot be edited
		if !again {
			delete(c.clicked, route)
		}
	}
	if !again && !(over && c.examined) { // what was done is said by one page
		c.examine("the answer to " + route)
		c.examined = c.examined || over
	}
}

// follow clicks the first verb of a page that is wanted, and those of the pages that it leads to.
func (c *clerk) follow(from string) {
	c.t.Helper()
	for _, f := range c.forms() {
		if route := c.r.of(f.Method, f.Action); c.wanted(route) {
			c.try(from, f)
			if len(leads[route]) > 0 {
				c.follow(route)
			}
			return
		}
	}
}

// TestVerbs: whoever clicks a verb is asked why, reads what was done, and finds it in the audit. Each verb of the
// table is clicked.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s, r := inTrouble(t), routes(t)
	c := &clerk{tab: s.tab(t, "ann", ui.Operate), r: r, clicked: map[string]bool{}}
	c.changes = true
	for _, route := range r.all(http.MethodPost) {
		if done[route] == "" {
			t.Errorf("%s is not clicked: say in done what it answers, and give inTrouble what it is for", route)
		}
	}
	single := []string{"/db/orders/outbox/events", "/db/ledger/inbox/events"} // before the verbs for many of them
	for address := range c.walk(r, 4, single...) {
		for status, before := http.StatusOK, -1; status == http.StatusOK && before < len(c.clicked); {
			before = len(c.clicked)
			if c.follow(address); before < len(c.clicked) {
				status = c.loads(address, chromedp.Navigate(s.url+address))
			}
		}
		if len(c.clicked) == len(done) {
			break
		}
	}
	for route := range done {
		if !c.clicked[route] {
			t.Errorf("no page has the verb %s: give inTrouble what it is for", route)
		}
	}
	c.open("/audit")
	for _, reason := range c.reasons {
		c.wants("ann", reason)
	}
}

// TestWhoMayNot: whoever only looks has no buttons, and what is sent all the same is refused.
func TestWhoMayNot(t *testing.T) {
	t.Parallel()
	s, r := inTrouble(t), routes(t)
	b := s.tab(t, "vic", ui.View)
	for address := range b.walk(r, 2) {
		if n := len(b.forms()); n > 0 {
			t.Errorf("%s has %d forms", address, n)
		}
	}
	fill := strings.NewReplacer("{db}", "orders", "{side}", "outbox", "{id}", "1")
	for _, route := range r.all(http.MethodPost) {
		path := fill.Replace(strings.TrimPrefix(route, "POST "))
		b.js(`{ const form = document.createElement("form"); form.method = "post"; form.action = `+quote(s.url+path)+`;
			form.innerHTML = '<input name="reason" value="r"><input name="topic" value="payments"><button id="forged">';
			document.body.prepend(form); }`, nil)
		if status := b.press("#forged"); status != http.StatusForbidden {
			t.Errorf("%s of somebody who may only look: %d", route, status)
		}
		b.wants("You may not do this", `yours is "view"`)
	}
}

// TestAnotherSite: a form on somebody else's page, sent by somebody who may operate, changes nothing.
func TestAnotherSite(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>Free</title><link rel="icon" href="data:,"><form method="post" action="%s">
			<input name="topic" value="payments"><input name="reason" value="r"><button id="free">Free</button></form>`,
			html.EscapeString(s.url+"/db/orders/topics/pause"))
	}))
	t.Cleanup(other.Close)
	theirs := &site{url: strings.Replace(other.URL, "127.0.0.1", "localhost", 1)}
	s.also = theirs
	b := s.tab(t, "ann", ui.Operate)
	b.loads("another site", chromedp.Navigate(theirs.url+"/"))
	if status := b.press("#free"); status != http.StatusForbidden {
		t.Errorf("%d", status)
	}
	b.wants("cross-origin request refused")
	if n := pgtest.One[int64](t, db, `select count(*) from outbox_paused_topic`); n != 0 {
		t.Error("it was done")
	}
}

// reveal shows the content of the event that the tab is at.
func (b *tab) reveal() {
	b.t.Helper()
	b.fill("form[action$='/reveal'] input[name=reason]", "to see it")
	b.follow("form[action$='/reveal'] button")
}

// edit leads to what an edit of the revealed payload changes.
func (b *tab) edit(text string) {
	b.t.Helper()
	b.click(".editor summary")
	b.do("all of it", chromedp.SetValue(chromedp.CSS("#payload"), text))
	b.fill(".editor input[name=reason]", "it was wrong")
	b.follow(".editor button")
}

func eventPath(id int64) string { return fmt.Sprintf("/db/orders/outbox/events/%d", id) }

// TestTwoOperators: of two who edit one event the second changes nothing, and reads that somebody was quicker; and so
// does whoever sends a form about what is gone.
func TestTwoOperators(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	id, gone := park(t, db, "account-7", `{"amount": 10}`), park(t, db, "", "{}")
	s := serve(t, ui.Config{}, of("orders", db))
	ann, bob := s.tab(t, "ann", ui.Operate), s.tab(t, "bob", ui.Operate)
	for b, amount := range map[*tab]string{ann: "11", bob: "12"} {
		b.open(eventPath(id))
		b.reveal()
		b.edit(`{"amount": ` + amount + `}`)
		b.wants(`- "amount": 10`, `+ "amount": `+amount)
	}
	ann.follow("form[action$='/edit'] button")
	ann.wants("The payload is changed.")
	if status := bob.press("form[action$='/edit'] button"); status != http.StatusConflict {
		t.Errorf("%d", status)
	}
	bob.wants("Nothing was changed: somebody was quicker")
	bob.examine("a refused edit")
	if got := pgtest.One[string](t, db, `select convert_from(payload, 'UTF8') from outbox_parked where id = $1`,
		id); got != `{"amount": 11}` {
		t.Errorf("the payload is %s", got)
	}
	if got := pgtest.One[string](t, db, `select string_agg(operator, ',') from outbox_audit
		where action = 'edit parked'`); got != "ann" {
		t.Errorf("the audit has edits of %s", got)
	}

	bob.open(eventPath(gone))
	bob.takeUp(form{N: 1}) // its release
	bob.complete("it may go")
	ann.open(eventPath(gone))
	ann.click("details:has(form[action$='/discard']) summary")
	ann.fill("form[action$='/discard'] input[name=reason]", "nobody wants it")
	ann.follow("form[action$='/discard'] button")
	if status := bob.press("#taken button"); status != http.StatusConflict {
		t.Errorf("%d", status)
	}
	bob.wants("Nothing was changed: somebody was quicker")
	if status := bob.loads("what is gone", chromedp.Navigate(s.url+eventPath(gone))); status != http.StatusNotFound {
		t.Errorf("%d", status)
	}
	bob.wants("This event is not parked")
}
