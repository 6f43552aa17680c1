package httpedge_test

import (
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency/httpedge"
)

// TestProblemTypesAreDocumented: each problem's type links to a section of docs/idempotency.md.
func TestProblemTypesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/idempotency.md")
	if err != nil {
		t.Fatal(err)
	}
	for code := range httpedge.Codes() {
		if !strings.Contains(string(page), "\n### "+string(code)+"\n") {
			t.Errorf("docs/idempotency.md has no heading %s", code)
		}
	}
}
