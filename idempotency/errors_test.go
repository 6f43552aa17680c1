package idempotency_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for why, c := range map[string]struct {
		err   error
		class idempotency.Class
		code  string
	}{
		"nothing": {nil, idempotency.Unclassified, ""},
		"no mark": {io.EOF, idempotency.Unclassified, ""},
		"terminal": {
			idempotency.Terminal("declined", io.EOF), idempotency.ClassTerminal,
			"declined",
		},
		"retryable":  {idempotency.Retryable(io.EOF), idempotency.ClassRetryable, ""},
		"indefinite": {idempotency.OutcomeUnknown(io.EOF), idempotency.ClassUnknown, ""},
		"a mark within": {
			fmt.Errorf("at the provider: %w", idempotency.Retryable(io.EOF)),
			idempotency.ClassRetryable, "",
		},
		"the outermost of two": {
			idempotency.OutcomeUnknown(idempotency.Terminal("declined", io.EOF)),
			idempotency.ClassUnknown, "",
		},
		"the outermost, the other way": {idempotency.Terminal("late",
			fmt.Errorf("x: %w", idempotency.Retryable(io.EOF))), idempotency.ClassTerminal, "late"},
	} {
		class, code := idempotency.Classify(c.err)
		if class != c.class || code != c.code {
			t.Errorf("%s: %v %q", why, class, code)
		}
		if c.err != nil && !errors.Is(c.err, io.EOF) {
			t.Errorf("%s hides its cause", why)
		}
	}
	if idempotency.Terminal("x", nil) != nil || idempotency.Retryable(nil) != nil ||
		idempotency.OutcomeUnknown(nil) != nil {
		t.Error("a mark makes an error of nil")
	}
}

// TestErrors_Texts: each error matches its kind, and reveals nothing of the first command.
func TestErrors_Texts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err, kind error
		says      string
	}{
		{
			&idempotency.MismatchError{State: idempotency.Completed, Resource: "secret"}, idempotency.ErrMismatch,
			"COMPLETED",
		},
		{&idempotency.InProgressError{RetryAfter: 3 * time.Second}, idempotency.ErrInProgress, "3s"},
		{
			&idempotency.UnknownError{Stage: idempotency.ProviderRequestSent, Reason: "secret"}, idempotency.ErrUnknown,
			"PROVIDER_REQUEST_SENT",
		},
		{&idempotency.ExpiredError{Resource: "secret"}, idempotency.ErrExpired, "no longer kept"},
	} {
		if text := c.err.Error(); !errors.Is(c.err, c.kind) || !strings.Contains(text, c.says) ||
			strings.Contains(text, "secret") {
			t.Errorf("%T: %v", c.err, c.err)
		}
	}
}
