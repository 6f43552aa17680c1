package ui_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
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
			|| (select json_agg(a)::text from outbox_audit a) || (select json_agg(t)::text from outbox_paused_topic t)`)
	}
	before := rows()
	for _, id := range hidden {
		for _, r := range routes(t) {
			table = append(table, r.method+" "+r.pattern)
			path := strings.ReplaceAll(r.path, "/events/1", fmt.Sprint("/events/", id))
			if r.pattern == "/db/{db}/{side}/failures" {
				path += "?topic=hidden-topic&type=hidden-type&kind=refused&code=MESSAGE_TOO_LARGE"
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
					"before", strings.Repeat("0", 64), "after", "")
			}
			name := r.method + " " + path
			if slices.Contains(ui.ForSome, r.method+" "+r.pattern) {
				if r.method == http.MethodGet && strings.Contains(path, "/events/") && status != http.StatusNotFound {
					t.Errorf("%s: %d", name, status)
				}
			} else if status != http.StatusForbidden || !strings.Contains(page, "you may see some of them") {
				t.Errorf("%s is open to somebody who sees some topics: %d", name, status)
			}
			for _, text := range []string{"hidden-payload", "hidden-error", "hidden-ann", "hidden-key0"} {
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
		!contains(page, "1 key and 0 lone events is released") {
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
