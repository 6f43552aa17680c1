package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/internal/sleep"
)

func TestOutlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		longer, end := sleep.Outlive(ctx, time.Minute)
		defer end()
		gone := errors.New("the caller has gone")
		cancel(gone)
		began := time.Now()
		<-longer.Done()
		if lived := time.Since(began); lived != time.Minute || context.Cause(longer) != gone {
			t.Errorf("it lived on for %v, and its cause is %v", lived, context.Cause(longer))
		}
		_, end = sleep.Outlive(ctx, time.Minute)
		end() // else its goroutine is left
	})
}
