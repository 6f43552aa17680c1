package deploy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const idempotencyFile = "../../deploy/prometheus/idempotency.yml"

// TestIdempotencyRules: the example can be loaded, and each rule is about an instrument that there is.
func TestIdempotencyRules(t *testing.T) {
	t.Parallel()
	for _, r := range rulesOf(t, idempotencyFile) {
		unknownInstruments(t, r.Alert, r.Expr)
		checkPage(t, r)
		checkBorn(t, r)
	}
}

// unknownInstruments fails for what a text takes for a metric of the edge and is none.
func unknownInstruments(t *testing.T, where, text string) {
	t.Helper()
	doc, err := os.ReadFile("../../idempotency/telemetry/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(idempotency\.[a-z_.]+) `).FindAllStringSubmatch(string(doc), -1) {
		known[strings.ReplaceAll(m[1], ".", "_")] = true
	}
	for _, name := range regexp.MustCompile(`idempotency_[a-z_]+`).FindAllString(text, -1) {
		name = strings.TrimSuffix(name, "_bucket")
		if !known[strings.TrimSuffix(strings.TrimSuffix(name, "_total"), "_seconds")] {
			t.Errorf("%s: there is no %s", where, name)
		}
	}
}
