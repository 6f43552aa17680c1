package service_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogger(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log, err := service.Logger(&out, "json", "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("no")
	log.Warn("yes", "after", 1500*time.Millisecond)
	if got := out.String(); strings.Contains(got, `"no"`) || !strings.Contains(got, `"msg":"yes","after":"1.5s"`) {
		t.Errorf("logged %s", got)
	}
	for _, wrong := range [][2]string{{"xml", "info"}, {"text", "loud"}, {"text", ""}} {
		if _, err := service.Logger(&out, wrong[0], wrong[1]); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}
