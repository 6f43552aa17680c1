package idempotency_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

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
