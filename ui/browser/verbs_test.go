package browser

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// done are the verbs that are clicked, and what a page says of the change, or of the step after it.
var done = map[string]string{
	"POST /db/{db}/{side}/events/{id}/reveal":  `"payment": "p-20931"`,
	"POST /db/{db}/{side}/events/{id}/preview": "Its id, topic, key and type stay.",
	"POST /db/{db}/{side}/events/{id}/edit":    "The payload is changed.",
	"POST /db/{db}/{side}/events/{id}/release": "It is released",
	"POST /db/{db}/{side}/events/{id}/discard": "It is given up for good.",
	"POST /db/{db}/{side}/keys/release":        "of its list, in order.",
	"POST /db/{db}/{side}/keys/discard":        "given up for good.",
	"POST /db/{db}/topics/pause":               "is paused",
	"POST /db/{db}/topics/resume":              "goes on",
	"POST /db/{db}/consumers/resume":           "goes on within seconds",
	"POST /db/{db}/idempotency/retry":          "Recovery tries once more.",
	"POST /db/{db}/idempotency/retry-all":      "once more.",
	"POST /db/{db}/idempotency/complete":       "It is completed",
	"POST /db/{db}/idempotency/free":           "The key is free",
}

// form is one of a page that changes something. N is its place among them.
type form struct {
	Action string
	N      int
}

func (b *tab) forms() (list []form) {
	b.t.Helper()
	b.js(`[...document.querySelectorAll("form[method=post]")].map((f, i) => ({Action: f.action, N: i}))`, &list)
	return list
}

// takeUp marks a form and opens it, as a person does who clicks its verb.
func (b *tab) takeUp(f form) {
	b.t.Helper()
	b.js(fmt.Sprintf(`(() => {
		const form = document.querySelectorAll("form[method=post]")[%d];
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
	b.js(`[...document.querySelectorAll("#taken :is(input:not([type=hidden]), textarea)")].filter(e =>
		!e.validity.valid || e.tagName === "TEXTAREA" && e.value).forEach((e, i) => {
			e.classList.add("wanted"); e.dataset.at = i;
		})`, nil)
	for i := range b.count(".wanted") {
		at := fmt.Sprintf(`.wanted[data-at="%d"]`, i)
		switch {
		case b.count(at+"[type=checkbox]") > 0:
			b.click(at)
		case b.count(at+"[type=number]") > 0:
			b.fill(at, "201")
		case b.count(at+"[name=reason]") > 0:
			b.fill(at, reason)
		case b.count("textarea"+at) > 0:
			b.fill(at, " ") // another byte
		default:
			b.fill(at, "shipments") // a topic
		}
	}
}

// TestVerbs: whoever clicks a verb is asked why, reads what was done, and finds it in the audit.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s, r := inTrouble(t), routes(t)
	b := s.tab(t, "ann", ui.Operate)
	b.changes = true
	var reasons []string
	clicked := map[string]bool{}
	try := func(from string, f form) {
		route := r.of(http.MethodPost, f.Action)
		b.takeUp(f)
		if b.count("#taken input[name=reason][required], #taken input[name=reason][value]") != 1 {
			t.Errorf("%s: %s asks for no reason", from, route)
		}
		// Without one the browser sends nothing, and says what is missing.
		if b.count("#taken:invalid") > 0 {
			b.click("#taken button")
			b.awaits("the field that is missing", `document.activeElement.matches("#taken :invalid")`)
		}
		reason := fmt.Sprintf("incident %d, %s", 4000+len(reasons), route)
		b.complete(reason)
		b.js(`document.querySelector("#taken [name=reason]").value`, &reason) // a second step has that of the first
		if status := b.press("#taken button:not([type=button])"); status != http.StatusOK {
			t.Errorf("%s: %s: %d\n%s", from, route, status, b.text())
			clicked[route] = true
			return
		}
		b.wants(done[route])
		over := b.count(".notice.ok[role=status]") > 0
		if over || strings.HasSuffix(route, "/reveal") {
			reasons = append(reasons, reason)
		}
		// What is revealed of an event that is on its way cannot be edited: the next one may.
		if clicked[route] = over || len(b.forms()) > 0; clicked[route] {
			b.examine("the answer to " + route)
		}
	}
	// A form may lead to another one, which is the next step.
	var follow func(from string)
	follow = func(from string) {
		for _, f := range b.forms() {
			if route := r.of(http.MethodPost, f.Action); done[route] != "" && !clicked[route] {
				if try(from, f); clicked[route] {
					follow(route)
				}
				return
			}
		}
	}
	for before := -1; before < len(clicked) && len(clicked) < len(done); {
		before = len(clicked)
		b.walk(r, func(address, _ string) { follow(address) })
	}
	for route := range done {
		if !clicked[route] {
			t.Errorf("no page has the verb %s: give inTrouble what it is for", route)
		}
	}
	b.open("/audit")
	for _, reason := range reasons {
		b.wants("ann", reason)
	}
}

// TestWhoMayNot: whoever only looks has no buttons, and what is sent all the same is refused.
func TestWhoMayNot(t *testing.T) {
	t.Parallel()
	s, r := inTrouble(t), routes(t)
	b := s.tab(t, "vic", ui.View)
	b.walk(r, func(address, _ string) {
		if n := len(b.forms()); n > 0 {
			t.Errorf("%s has %d forms", address, n)
		}
	})
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
	b.wants("this was sent by another site, and is not done")
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
