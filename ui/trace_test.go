package ui_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/ui"
)

// TestTraceLink: a revealed event leads to the trace that it was appended in, and to none when it has none.
func TestTraceLink(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{TraceURL: "https://traces.example/t/{trace_id}?x=<1>"}, of("orders", db))
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	for header, want := range map[string]bool{
		"00-" + trace + "-00f067aa0ba902b7-01":                         true,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01":      false,
		"00-" + trace[:31] + "/-00f067aa0ba902b7-01":                   false,
		"javascript:alert(1)//00-" + trace + "-00f067aa0ba902b7-01":    false,
		"00-" + strings.ToUpper(trace) + "-00f067aa0ba902b7-01":        false,
		"00-" + trace + "-00f067aa0ba902b7-01-what-a-later-version-is": true,
	} {
		id := park(t, db, "", "{}")
		db.Exec(t, `update outbox_parked set headers = jsonb_build_object('traceparent', $2::text) where id = $1`, id,
			header)
		lacks(t, s.get(eventPath(id)), "traces.example")
		status, page := s.post(eventPath(id) + "/reveal")
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, page)
		}
		link := `<a href="https://traces.example/t/` + trace + `?x=%3c1%3e" rel="noreferrer">`
		if strings.Contains(page, link) != want || strings.Contains(page, "traces.example") != want {
			t.Errorf("%s: a link is %v wanted:\n%s", header, want, page)
		}
	}
	for _, wrong := range []string{
		"traces.example/{trace_id}", "https://traces.example/", "javascript:{trace_id}", "https:///{trace_id}",
		"https://traces.example:{trace_id}x/",
	} {
		if _, err := ui.New([]ui.Database{of("a", db)}, ui.Config{Authorize: byHeader, TraceURL: wrong}); err == nil ||
			!strings.Contains(err.Error(), "TraceURL") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
