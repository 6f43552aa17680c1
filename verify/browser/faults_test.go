package browser

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// hurries has pages renew themselves fifty times as often as they do for people.
func (b *tab) hurries() {
	b.t.Helper()
	b.onEachPage("window.setInterval = (f, ms) => atIntervals(f, ms / 50)")
}

// TestDatabaseGoesAway: a page that is open says that its database is away, and shows it again once it is back; so it
// does when the server of the pages is away.
func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	park(t, db, "account-7", "{}")
	proxy := pgtest.NewProxy(t, db.URL)
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: pool, Schema: db.Schema})
	b := s.tab(t, "ann", ui.Operate)
	b.hurries()
	b.open("/keys")
	b.wants("account-7")
	proxy.Refuse(true)
	proxy.CutAll()
	b.awaitsText("This database cannot be looked at")
	b.wants("It does not answer in time.")
	proxy.Refuse(false)
	b.awaitsText("account-7")

	change := s.tab(t, "bob", ui.Operate)
	change.open("/keys")
	change.takeUp(form{N: 0})
	change.complete("now it may go")
	proxy.Refuse(true)
	proxy.CutAll()
	pool.Reset() // a connection that breaks below the change leaves unknown whether it was done
	if status := change.press("#taken button"); status != http.StatusServiceUnavailable {
		t.Errorf("%d", status)
	}
	change.wants("Nothing was changed: the database could not be reached.")
	b.awaitsText("This database cannot be looked at")
	proxy.Refuse(false)

	b.awaitsText("account-7")
	b.away(true)
	s.down.Store(true)
	b.awaitsText("does not answer: this is how it was")
	b.wants("account-7")
	s.down.Store(false)
	b.awaitsText("renews itself")
	b.away(false)
}

// TestPayloads: whatever a payload is, it is shown, does nothing, and leaves the page usable.
func TestPayloads(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	b := s.tab(t, "ann", ui.Operate)
	const script = `</pre></textarea></script><script>window.ran = 1; alert(1)</script>` +
		`<img src=/x onerror="window.ran = 1"><svg onload="window.ran = 1"><a href="javascript:window.ran=1">a</a>`
	large := `{"lines": [` + strings.Repeat(`"0123456789 abcdefghijklmnopqrstuvwxyz",`, 1<<20/40) + `""]}`
	for name, c := range map[string]struct {
		payload any
		shows   string
	}{
		"script":         {script, `<img src=/x onerror="window.ran = 1">`},
		"script in JSON": {`{"a": ` + quote(script) + `}`, "onerror="},
		"bytes":          {append([]byte{0xff, 0xfe, 0x00}, bytes.Repeat([]byte{'<'}, 5000)...), "ff fe 00 3c"},
		"1 MiB":          {large, "0123456789 abcdefghijklmnopqrstuvwxyz"},
		"1 MiB of bytes": {bytes.Repeat([]byte{0xc3, 0x28}, 1<<19), "more bytes are not shown"},
		"none":           {nil, "A tombstone: there is none."},
	} {
		b.open(eventPath(park(t, db, "", c.payload)))
		b.wants("Headers and payload are hidden.")
		b.reveal()
		b.js(`document.querySelectorAll("details").forEach(d => { d.open = true })`, nil)
		var shown, ran bool
		if b.js(`document.body.innerText.includes(`+quote(c.shows)+`)`, &shown); !shown {
			t.Errorf("%s: the page does not show %q", name, c.shows)
		}
		if b.js(`"ran" in window`, &ran); ran {
			t.Errorf("%s: the page ran it", name)
		}
		if n := b.count("main :is(script, img, a[href^=javascript])"); n > 0 {
			t.Errorf("%s: %d elements of the payload are the page's", name, n)
		}
		if !strings.Contains(name, "MiB") { // axe looks at every character
			b.examine("a payload: " + name)
		}
	}
}

// TestThousandsAreParked: of ten thousand events and keys a page shows a hundred, and leads to the others.
func TestThousandsAreParked(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_parked (lane, id, alone, maybe_published, attempts, reason, code, message_id, source,
			tenant, topic, key, type, content_type, created_at)
		select g % 32, g, g % 2 = 0, false, 1, repeat('why ', 100), 'C', gen_random_uuid(), '', '', 'payments',
			case g % 2 when 0 then '' else 'key-' || g end, 'Paid', '', now() from generate_series(1, 20000) g`)
	db.Exec(t, `insert into outbox_parked_key (lane, tenant, topic, key, reason, code)
		select lane, tenant, topic, key, reason, code from outbox_parked where key <> ''`)
	s := serve(t, ui.Config{}, of("orders", db))
	b := s.tab(t, "ann", ui.Operate)
	for _, path := range []string{"/", "/topics", "/keys", "/db/orders/outbox/events"} {
		b.open(path)
		if rows, all := b.count("tbody tr"), b.count("*"); rows > 110 || all > 6000 {
			t.Errorf("%s has %d rows and %d elements", path, rows, all)
		}
	}
	first := b.count("main a[href*='/outbox/events/']")
	b.follow("a[rel=next]")
	if again := b.count("main a[href*='/outbox/events/']"); first != 100 || again != 100 {
		t.Errorf("the first page leads to %d events, the next one to %d", first, again)
	}
	b.wants("First page")
	b.open("/keys")
	b.wants("There are more than these 100: the filter cuts them down.")
}
