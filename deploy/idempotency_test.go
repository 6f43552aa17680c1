package deploy

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// TestIdempotencyRules: the example can be loaded, and each rule is about an instrument that there is.
func TestIdempotencyRules(t *testing.T) {
	t.Parallel()
	groups, errs := rulefmt.ParseFile("prometheus/idempotency.yml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	doc, err := os.ReadFile("../idempotency/telemetry/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(idempotency\.[a-z_.]+) `).FindAllStringSubmatch(string(doc), -1) {
		known[strings.ReplaceAll(m[1], ".", "_")] = true
	}
	for _, r := range groups.Groups[0].Rules {
		for _, name := range regexp.MustCompile(`idempotency_[a-z_]+`).FindAllString(r.Expr, -1) {
			if !known[strings.TrimSuffix(strings.TrimSuffix(name, "_total"), "_seconds")] {
				t.Errorf("%s: there is no %s", r.Alert, name)
			}
		}
	}
}
