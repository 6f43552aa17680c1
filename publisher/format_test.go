package publisher_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/sasl/plain"

	"github.com/effectonce/effectonce/internal/testenv/canary"
	"github.com/effectonce/effectonce/publisher"
)

// TestI10PrintedConfig checks that a Config that is printed or logged shows no password.
func TestI10PrintedConfig(t *testing.T) {
	t.Parallel()
	const password = "canary-51c9"
	cfg := publisher.Config{ClientID: "visible", SASL: plain.Mechanism{Username: "u", Password: password}}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&out, verb+"\n"+verb+"\n", cfg, &cfg)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("a", "config", cfg)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("a", "config", cfg)
	if lines := canary.Lines(out.String(), password); lines != nil || !strings.Contains(out.String(), "visible") ||
		!strings.Contains(out.String(), "PLAIN") {
		t.Errorf("leaks %q of\n%s", lines, &out)
	}
}
