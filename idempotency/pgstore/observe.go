package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// observe tells what a caller was told.
func (s *Store) observe(ctx context.Context, r idempotency.Request, began time.Time, res idempotency.Result,
	shared bool, err error,
) {
	o, operation := s.cfg.Observer, r.Key.Operation
	var (
		mismatch *idempotency.MismatchError
		progress *idempotency.InProgressError
		unknown  *idempotency.UnknownError
	)
	switch {
	case err == nil && res.Replayed:
		tell(o.Replayed, idempotency.ReplayedInfo{Operation: operation, Failure: res.Failure, Shared: shared})
	case err == nil:
		tell(o.Finished, idempotency.FinishedInfo{Operation: operation, Failure: res.Failure, Took: time.Since(began)})
	case errors.As(err, &mismatch):
		s.log.WarnContext(ctx, "an idempotency key was used for another command, and refused", "operation", operation,
			"state", mismatch.State)
		tell(o.Mismatched, idempotency.MismatchedInfo{Operation: operation, State: mismatch.State})
	case errors.As(err, &progress):
		tell(o.InProgress, idempotency.InProgressInfo{Operation: operation, Age: progress.Age})
	case errors.Is(err, idempotency.ErrExpired):
		tell(o.ExpiredRetry, idempotency.ExpiredInfo{Operation: operation})
	case errors.As(err, &unknown):
		// Only a COMMIT without a reply makes one: what recovery is to find out was met.
		made := err != error(unknown) && !shared
		info := idempotency.UnknownInfo{Operation: operation, Stage: unknown.Stage, New: made}
		if made {
			info.Err = err
		}
		tell(o.Unknown, info)
	default:
		tell(o.Released, idempotency.ReleasedInfo{Operation: operation, Err: err})
	}
}

func tell[T any](f func(T), info T) {
	if f != nil {
		f(info)
	}
}
