package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// limit is so long that a test fails on a wrong page, never on a slow machine.
const limit = 2 * time.Minute

// tab is one of the browser's, of somebody. What it should not do fails its test: an error in the console, a violation
// of the page's policy, a request to somebody else, a dialog.
type tab struct {
	t    *testing.T
	site *site
	ctx  context.Context

	mu      sync.Mutex
	status  int // of the page that it shows
	trouble []string
	outage  bool // the server or its database is away: what fails to load is no trouble
	changes bool // its test changes what there is
}

func (s *site) tab(t *testing.T, name string, level ui.Level) *tab {
	t.Helper()
	b := &tab{t: t, site: s}
	var closeTab context.CancelFunc
	b.ctx, closeTab = chromedp.NewContext(startedChromium(t), chromedp.WithListener(b.hears))
	t.Cleanup(closeTab)
	if err := chromedp.Do(b.ctx); err != nil { // what begins here lasts as long as its context, so it has no limit
		t.Fatal(err)
	}
	call(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{
		Headers: network.Headers{"Test-Name": name, "Test-Level": level.String()},
	})
	// All tabs are looked at.
	call(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	b.onEachPage("window.atIntervals = setInterval; window.setInterval = () => 0") // a page stays as it was loaded
	b.size(desktop)
	b.theme("light")
	t.Cleanup(func() {
		b.js("0", nil) // what was sent before this answer is heard
		for _, what := range b.forgive() {
			t.Errorf("%s's tab: %s", name, what)
		}
	})
	return b
}

var (
	desktop = [2]int64{1280, 800}
	phone   = [2]int64{360, 740}
)

// onEachPage runs a script in each page that comes, before its own.
func (b *tab) onEachPage(script string) {
	b.t.Helper()
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
}

func (b *tab) size(of [2]int64) {
	b.t.Helper()
	b.do("size", chromedp.EmulateViewport(of[0], of[1]))
}

func (b *tab) theme(name string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name},
		{Name: "prefers-reduced-motion", Value: "reduce"}, // colours on their way are no colours
	}})
}

// favicon is what browsers ask each server for by themselves, now and then.
const favicon = "/favicon.ico"

// hears is called for each event of the tab, one after the other.
func (b *tab) hears(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong := func(format string, args ...any) { b.trouble = append(b.trouble, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if !b.site.has(e.Request.URL) && !strings.HasSuffix(e.Request.URL, favicon) &&
			!strings.HasPrefix(e.Request.URL, "data:") {
			wrong("it asks for %s", e.Request.URL)
		}
	case *network.EventResponseReceived:
		if e.Type == network.ResourceTypeDocument {
			b.status = int(e.Response.Status)
		} else if e.Response.Status >= 400 && !b.outage && !strings.HasSuffix(e.Response.URL, favicon) {
			wrong("%s: %d", e.Response.URL, e.Response.Status)
		}
	case *runtime.EventExceptionThrown:
		wrong("an exception: %s", described(e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		wrong("the console has %s: %s", e.Type, described(e.Args...))
	case *log.EventEntryAdded:
		// A page that says no has a status, which tests look at; what it loads is looked at above.
		status := strings.Contains(e.Entry.Text, "responded with a status")
		if e.Entry.Source != log.EntrySourceNetwork || !status && !b.outage {
			wrong("%s of %s: %s", e.Entry.Level, e.Entry.Source, e.Entry.Text)
		}
	case *page.EventJavascriptDialogOpening:
		wrong("a dialog: %s", e.Message)
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	}
}

// away has requests fail without that being trouble.
func (b *tab) away(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outage = is
}

// described is what the console has of values.
func described(values ...*runtime.RemoteObject) string {
	var texts []string
	for _, v := range values {
		if v != nil {
			texts = append(texts, string(v.Value)+v.Description)
		}
	}
	return strings.Join(texts, " ")
}

// forgive returns what the tab should not have done, and forgets it.
func (b *tab) forgive() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	trouble := b.trouble
	b.trouble = nil
	return trouble
}

// call sends a command of the browser's protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) (result R) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

func (b *tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v\n%s", what, err, b.text())
	}
}

// loads does what ends in another page, and returns that page's status.
func (b *tab) loads(what string, actions ...chromedp.Action[chromedp.Void]) int {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v\n%s", what, err, b.text())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// open shows a page of the site, which must be there.
func (b *tab) open(path string) {
	b.t.Helper()
	if status := b.loads(path, chromedp.Navigate(b.site.url+path)); status != 200 {
		b.t.Fatalf("%s: %d\n%s", path, status, b.text())
	}
}

// follow clicks what leads to another page, which must be there.
func (b *tab) follow(selector string) {
	b.t.Helper()
	if status := b.press(selector); status != 200 {
		b.t.Fatalf("%s leads to %d\n%s", selector, status, b.text())
	}
}

// press clicks what leads to another page, and returns its status.
func (b *tab) press(selector string) int {
	b.t.Helper()
	return b.loads("click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.do("click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

func (b *tab) fill(selector, text string) {
	b.t.Helper()
	b.do("fill "+selector, chromedp.SendKeys(chromedp.CSS(selector), text))
}

// evaluate returns what an expression of the page's script is.
func (b *tab) evaluate(expression string, result any) error {
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[[]byte](expression, chromedp.EvalAwaitPromise))
	if err != nil || result == nil {
		return err
	}
	return json.Unmarshal(value, result)
}

func (b *tab) js(expression string, result any) {
	b.t.Helper()
	if err := b.evaluate(expression, result); err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
}

// count is how many elements there are.
func (b *tab) count(selector string) (n int) {
	b.t.Helper()
	b.js("document.querySelectorAll("+quote(selector)+").length", &n)
	return n
}

// text is what a person reads, with single spaces.
func (b *tab) text() string {
	var text string
	if err := b.evaluate("document.body.innerText", &text); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(text), " ")
}

func (b *tab) wants(texts ...string) {
	b.t.Helper()
	page := b.text()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			b.t.Errorf("the page does not say %q:\n%s", text, page)
		}
	}
}

// awaits waits until an expression of the page's script is true. Another page may come meanwhile.
func (b *tab) awaits(what, expression string) {
	b.t.Helper()
	pgtest.Await(b.t, what, func() (is bool, err error) {
		return b.evaluate(expression, &is) == nil && is, nil
	})
}

// awaitsText waits until the page says something.
func (b *tab) awaitsText(text string) {
	b.t.Helper()
	b.awaits(text, "document.body.innerText.includes("+quote(text)+")")
}

// quote makes a text an expression of a script.
func quote(text string) string {
	b, _ := json.Marshal(text) // of a string it never fails
	return string(b)
}
