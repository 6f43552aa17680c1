package browser

import (
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// focused describes where the keys go: a name for people, whether it can be seen there, and whether it shows.
const focused = `(() => {
	const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
	const at = document.elementFromPoint(box.x + box.width / 2, box.y + Math.min(box.height / 2, 20));
	return {
		Name: e.tagName.toLowerCase() + " " + (e.getAttribute("aria-label") || e.name || e.innerText || "").trim().slice(0, 60),
		Marked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
		Seen: box.width > 1 && at !== null && (e.contains(at) || at.contains(e) && !at.closest("header")),
	};
})()`

type focus struct {
	Name         string
	Marked, Seen bool
}

// TestKeyboard: Tab leads to every link, field and verb in the order of the page, each is seen and marked when it is
// there, and a verb is opened, filled in and sent without a mouse.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	for range 30 {
		park(t, db, pgtest.One[string](t, db, "select gen_random_uuid()::text"), "{}")
	}
	s := serve(t, ui.Config{}, of("orders", db))
	b := s.tab(t, "ann", ui.Operate)
	b.hurries()
	b.open("/keys")
	press := func(keys string) (f focus) {
		b.do("press", chromedp.KeyEvent(keys))
		b.js(focused, &f)
		return f
	}
	if f := press(kb.Tab); f.Name != "a To the content" || !f.Seen || !f.Marked {
		t.Errorf("Tab leads to %+v first", f)
	}
	press(kb.Enter)
	var order []string
	for len(order) < 100 {
		f := press(kb.Tab)
		if order = append(order, f.Name); !f.Seen || !f.Marked {
			t.Errorf("after %q: %+v", order, f)
		}
		if f.Name == "summary Release" && len(order) > 20 {
			break
		}
	}
	for _, want := range []string{"input topic", "button Filter", "a All", "summary Release", "summary Discard"} {
		if !slices.Contains(order, want) {
			t.Errorf("Tab does not lead to %q: %q", want, order)
		}
	}
	press(kb.Enter)
	if f := press(kb.Tab); f.Name != "input reason" || !f.Seen || !f.Marked {
		t.Errorf("an open verb leads to %+v", f)
	}
	press("the limit is higher now")
	if f := press(kb.Tab); f.Name != "button Release 1 event" || !f.Seen || !f.Marked {
		t.Errorf("a reason leads to %+v", f)
	}
	if status := b.loads("send it", chromedp.KeyEvent(kb.Enter)); status != 200 {
		t.Errorf("%d", status)
	}
	b.wants("of its list, in order.")
	// Backwards nothing hides below the bar.
	b.open("/keys")
	back := chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift))
	for range 60 {
		var f focus
		b.do("back", back)
		if b.js(focused, &f); !f.Seen || !f.Marked {
			t.Errorf("backwards: %+v", f)
		}
	}
}

// TestWithoutScript: every page reads, and every verb works, in a browser that runs no script.
func TestWithoutScript(t *testing.T) {
	t.Parallel()
	s, r := inTrouble(t), routes(t)
	b := s.tab(t, "ann", ui.Operate)
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	for address := range b.walk(r, 2) {
		if len(b.text()) < 100 || b.count("h1") != 1 {
			t.Errorf("%s says %q", address, b.text())
		}
		if n := b.count(".copy, .live:not([hidden])"); n > 0 {
			t.Errorf("%s has %d things that need a script", address, n)
		}
		var utc bool
		if b.js(`[...document.querySelectorAll("time:not(.ago)")].every(t => t.textContent.endsWith("UTC"))`, &utc); !utc {
			t.Errorf("%s has a time of no zone", address)
		}
	}
	b.open("/topics")
	b.click("details:has(form[action$='/pause']) summary")
	b.fill("details[open] input[name=reason]", "they are late")
	b.follow("details[open] form button")
	b.wants("is paused")
}
