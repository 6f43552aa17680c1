package ui_test

import (
	"fmt"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

// within is the same site for somebody who sees some topics and tenants: "topics/tenants".
func (s site) within(scope string) *site {
	s.scope = scope
	return &s
}

// others parks what the person of these tests does not see: of another topic, and of another tenant. It returns ids.
func others(t *testing.T, db *pgtest.DB) []int64 {
	t.Helper()
	var ids []int64
	db.Exec(t, `select setval('outbox_event_id_seq', 7000)`) // ids that no page has by chance
	for i, set := range []string{`topic = 'hidden-topic'`, `tenant = 'hidden-tenant'`} {
		key := fmt.Sprint("hidden-key", i)
		ids = append(ids, park(t, db, key, "hidden-payload"))
		db.Exec(t, `update outbox_parked set type = 'hidden-type', reason = 'hidden-error', `+set+` where key = $1`, key)
		db.Exec(t, `update outbox_parked_key set reason = 'hidden-error', `+set+` where key = $1`, key)
	}
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('hidden-topic', 3)`)
	db.Exec(t, `insert into outbox_scheduled (due, topic, tenant, key, type) values
		(now() + interval '1 hour', 'hidden-topic', '', 'hidden-key2', 'hidden-type'),
		(now() + interval '1 hour', 'payments', 'hidden-tenant', 'hidden-key3', 'hidden-type')`)
	db.Exec(t, `insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
			content_type, created_at)
		values (1, 6000, 'hidden-topic', 1, 6000, false, gen_random_uuid(), '', '', 'hidden-key4', 'hidden-type', '', now())`)
	db.Exec(t, `insert into outbox_paused_topic (topic, paused_by, reason) values ('hidden-topic', 'hidden-ann', 'r')`)
	db.Exec(t, `insert into outbox_audit (operator, action, topic, tenant, reason, detail)
		values ('hidden-ann', 'x', 'hidden-topic', '', 'r', '{}'), ('hidden-ann', 'x', 'payments', 'hidden-tenant', 'r',
			'{}'), ('hidden-ann', 'fence', null, null, 'r', '{}')`)
	return ids
}

// TestScope: somebody who sees some topics of some tenants is shown nothing of others on any route, and changes nothing
// of them by any; routes that are not known to keep to that are refused.
func TestScope(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	hidden := others(t, db)
	s := serve(t, ui.Config{}, of("orders", db)).within("payments,refunds.*/,acme")
	var table []string
	rows := func() string {
		return pgtest.One[string](t, db, `select (select json_agg(p order by id)::text from outbox_parked p)
			|| (select json_agg(k order by key)::text from outbox_parked_key k)
			|| (select json_agg(s order by seq)::text from outbox_scheduled s) || (select json_agg(h)::text from outbox_held h)
			|| (select json_agg(a)::text from outbox_audit a) || (select json_agg(t)::text from outbox_paused_topic t)`)
	}
	before := rows()
	for _, id := range hidden {
		for _, r := range routes(t) {
			table = append(table, r.method+" "+r.pattern)
			path := strings.ReplaceAll(r.path, "/events/1", fmt.Sprint("/events/", id))
			switch r.pattern {
			case "/db/{db}/{side}/failures":
				path += "?topic=hidden-topic&type=hidden-type&kind=refused&code=MESSAGE_TOO_LARGE"
			case "/search":
				path += fmt.Sprint("?text=", id)
			case "/scheduled":
				path += "?topic=hidden-topic"
			case "/topic/{db}/{topic}":
				path = "/topic/orders/hidden-topic"
			case "/db/{db}/replay/plan":
				path += "?topic=hidden-topic&from=2020-01-01"
			}
			var status int
			var page string
			if r.method == http.MethodGet {
				status, page = s.do(s.request(r.method, path, nil))
			} else {
				tenant := ""
				if id == hidden[1] {
					tenant = "hidden-tenant"
				}
				status, page = s.post(path, "topic", "hidden-topic", "tenant", ui.B64(tenant),
					"key", ui.B64("hidden-key1"), "type", "hidden-type", "kind", "refused", "code", "MESSAGE_TOO_LARGE",
					"limit", "1000", "until", "2099-01-01T00:00:00Z", "was", "", "payload", "x",
					"before", strings.Repeat("0", 64), "after", "", "all", "1", "choice",
					ui.B64(`{"From":"2020-01-01T00:00:00Z","To":"2099-01-01T00:00:00Z","Topic":"hidden-topic"}`))
			}
			name := r.method + " " + path
			if slices.Contains(ui.ForSome, r.method+" "+r.pattern) {
				if r.method == http.MethodGet && strings.Contains(path, "/events/") && status != http.StatusNotFound {
					t.Errorf("%s: %d", name, status)
				}
			} else if status != http.StatusForbidden || !strings.Contains(page, "you may see some of them") {
				t.Errorf("%s is open to somebody who sees some topics: %d", name, status)
			}
			for _, text := range []string{
				"hidden-payload", "hidden-error", "hidden-ann", "hidden-key0", "hidden-key2", "hidden-key3",
				"hidden-key4",
			} {
				if strings.Contains(page, text) {
					t.Errorf("%s tells %s:\n%s", name, text, words(page))
				}
			}
			if r.method == http.MethodGet && strings.Contains(page, "hidden-") && !strings.Contains(path, "?") {
				t.Errorf("%s tells of others:\n%s", name, words(page))
			}
		}
	}
	for _, known := range ui.ForSome {
		if !slices.Contains(table, known) {
			t.Errorf("%s is no route", known)
		}
	}
	if after := rows(); after != before {
		t.Errorf("something was changed:\n%s\n%s", before, after)
	}
}

// TestScopeSees: what is somebody's is there, is counted, and is changed.
func TestScopeSees(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	hidden := others(t, db)
	id := park(t, db, "mine", "{}")
	whole := serve(t, ui.Config{}, of("orders", db))
	s := whole.within("pay*/")
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 3)`)
	page := s.get("/failures")
	wants(t, page, "payments Paid refused MESSAGE_TOO_LARGE Message <too> large 1 0")
	lacks(t, page, ">Overview<", ">Doctor<", `class="badge"`)
	wants(t, s.get("/keys"), "payments mine parked")
	wants(t, s.get("/db/orders/outbox/events"), fmt.Sprintf(" %d payments mine", id))
	wants(t, s.get("/"), "Failures")       // the overview counts all
	lacks(t, s.get("/topics"), "payments") // its figures are of all tenants
	if status, _ := s.post("/db/orders/topics/pause", "topic", "payments"); status != http.StatusNotFound {
		t.Errorf("a pause of other tenants, too: %d", status)
	}
	wants(t, whole.within("pay*/*").get("/topics"), "payments 3 0 moves")
	lacks(t, whole.within("/").get("/failures"), "payments")
	release := "/db/orders/outbox/failures/release"
	if status, page := s.post(release, formOf(t, s.groupOf("Paid"), release)...); status != http.StatusOK ||
		!contains(page, "1 key is released") {
		t.Errorf("%d %s", status, page)
	}
	wants(t, s.get("/audit"), "release key")
	// What is not seen is answered as what is not there.
	for _, verb := range []string{"release", "discard", "reveal"} {
		status, page := s.post(eventPath(hidden[0]) + "/" + verb)
		none, nothing := s.post(eventPath(9999) + "/" + verb)
		page = strings.ReplaceAll(words(page), fmt.Sprint(hidden[0]), "9999")
		if i := strings.Index(page, "As of"); status != none || i < 0 || !strings.HasPrefix(words(nothing), page[:i]) {
			t.Errorf("%s: %d, and %d of what is not there:\n%s\n%s", verb, status, none, page, words(nothing))
		}
	}
	wants(t, whole.get(eventPath(hidden[0])), "hidden-topic")
}

// TestScopePages: of what was found, is scheduled, is held and is replayed, somebody who sees some topics is shown
// those, and gets on from there: no link and no form leads to where that person may not go.
func TestScopePages(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	hidden := others(t, db)
	failed(t, db, "mine")
	id := park(t, db, "mine", "{}")
	message := hold(t, db, "payments", 1, false)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 3)`)
	db.Exec(t, `update outbox_meta set kafka_cluster = 'abc'`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('ledger', 'payments', 0, 37, 37) on conflict do nothing`)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type)
		values (now() + interval '1 hour', 'payments', 'mine', 'Paid')`)
	whole := serve(t, ui.Config{}, of("orders", db))
	part, all := whole.within("pay*/"), whole.within("pay*/*")
	whole.get("/consumers") // who reads the topic is known

	page := part.get("/search?text=mine")
	wants(t, page, "scheduled", "failed ledger", "What is not of your topics and tenants.")
	wants(t, part.get(fmt.Sprint("/search?text=", id)), "parked", "payments mine")
	wants(t, part.get(fmt.Sprint("/search?text=", hidden[0])), "Nothing was found here.")
	wants(t, whole.get(fmt.Sprint("/search?text=", hidden[0])), "hidden-topic")
	page = part.get("/search?text=" + message)
	if !contains(page, "held") || strings.Contains(page, "/topic/orders/") {
		t.Errorf("a link to a page of all tenants:\n%s", page)
	}
	const topic = "/topic/orders/payments"
	for _, s := range []*site{whole, all} {
		if page := s.get("/search?text=" + message); !strings.Contains(page, prefix+topic) {
			t.Errorf("no link to the topic's page:\n%s", page)
		}
	}
	if status, _ := part.do(part.request(http.MethodGet, topic, nil)); status != http.StatusNotFound {
		t.Errorf("a page of all tenants: %d", status)
	}
	wants(t, all.get(topic), "Topic payments", "Held 1 event", "Consumer ledger", "Pause", "Discard all")
	lacks(t, all.get(topic), "Accept another")
	wants(t, part.get("/scheduled"), "payments mine Paid")
	lacks(t, part.get("/scheduled"), "events scheduled", "Do not publish it", "hidden-")
	wants(t, all.get("/archive"), "Plan a replay")
	lacks(t, all.get("/archive"), "About ")
	plan := "/db/orders/replay/plan?from=2020-01-01&topic="
	wants(t, all.get(plan+"payments"), "payments")
	for path, want := range map[string]int{
		"payments": http.StatusNotFound, "payments&tenant=other": http.StatusNotFound, "other": http.StatusNotFound,
	} {
		if status, _ := whole.within("pay*/acme").do(part.request(http.MethodGet, plan+path, nil)); status != want {
			t.Errorf("%s: %d", path, status)
		}
	}
	wants(t, whole.within("pay*/acme").get(plan+"payments&tenant=acme"), "payments")

	pages := []string{
		"/", "/topics", "/keys", "/failures", "/audit", "/search?text=mine", "/search?text=" + message, "/scheduled",
		"/archive", plan + "payments", topic, eventPath(id), "/db/orders/outbox/events", "/db/orders/inbox/events",
	}
	leads := regexp.MustCompile(`(?:href|(post)" action)="` + prefix + `(/[^"?#]*)`)
	seen := map[string]bool{}
	for _, path := range pages {
		for _, m := range leads.FindAllStringSubmatch(all.get(path), -1) {
			method := http.MethodGet
			if m[1] != "" {
				method = http.MethodPost
			}
			if seen[method+m[2]] {
				continue
			}
			seen[method+m[2]] = true
			status, page := all.do(all.request(method, html.UnescapeString(m[2]), nil))
			if strings.Contains(page, "you may see some of them") || status == http.StatusForbidden {
				t.Errorf("%s leads to %s %s: %d", path, method, m[2], status)
			}
		}
	}
	if len(seen) < 25 {
		t.Errorf("only %d links were looked at", len(seen))
	}
}
