package outcome_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/effectonce/effectonce/outcome"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for why, c := range map[string]struct {
		err   error
		class outcome.Class
		code  string
	}{
		"nothing": {nil, outcome.Unclassified, ""},
		"no mark": {io.EOF, outcome.Unclassified, ""},
		"terminal": {
			outcome.Terminal("declined", io.EOF), outcome.ClassTerminal,
			"declined",
		},
		"retryable":  {outcome.Retryable(io.EOF), outcome.ClassRetryable, ""},
		"indefinite": {outcome.Unknown(io.EOF), outcome.ClassUnknown, ""},
		"a mark within": {
			fmt.Errorf("at the provider: %w", outcome.Retryable(io.EOF)),
			outcome.ClassRetryable, "",
		},
		"the outermost of two": {
			outcome.Unknown(outcome.Terminal("declined", io.EOF)),
			outcome.ClassUnknown, "",
		},
		"the outermost, the other way": {outcome.Terminal("late",
			fmt.Errorf("x: %w", outcome.Retryable(io.EOF))), outcome.ClassTerminal, "late"},
	} {
		class, code := outcome.Of(c.err)
		if class != c.class || code != c.code {
			t.Errorf("%s: %v %q", why, class, code)
		}
		if c.err != nil && !errors.Is(c.err, io.EOF) {
			t.Errorf("%s hides its cause", why)
		}
	}
	if outcome.Terminal("x", nil) != nil || outcome.Retryable(nil) != nil ||
		outcome.Unknown(nil) != nil {
		t.Error("a mark makes an error of nil")
	}
}
