package outboxtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outboxtest"
)

// logging is a testing.TB that records Logf.
type logging struct {
	testing.TB
	lines []string
}

func (l *logging) Logf(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// TestLogsSlowHandler: a slow handler is logged, with the settings that end its retries.
func TestLogsSlowHandler(t *testing.T) {
	t.Parallel()
	for takes, want := range map[time.Duration]int{0: 0, 4 * time.Second: 0, time.Minute: 1} {
		synctest.Test(t, func(t *testing.T) {
			tb := &logging{TB: t}
			h := inbox.HandlerFunc(func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
				<-time.After(takes)
				return make([]inbox.Outcome, len(events)), nil
			})
			if _, err := outboxtest.Deliver(t.Context(), tb, h, event.Event{Topic: "payments", Type: "T"}); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(strings.Join(tb.lines, "\n"), "MaxAttempts: 1"); n != want || len(tb.lines) != want {
				t.Errorf("an effect of %v: logged %d times, want %d: %q", takes, n, want, tb.lines)
			}
		})
	}
}
