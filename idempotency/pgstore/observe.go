package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// observe reports the outcome of InTx or Within to the Observer.
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
		notify(o.Replayed, idempotency.ReplayedInfo{Operation: operation, Failure: res.Failure, Shared: shared})
	case err == nil:
		took := time.Since(began)
		notify(o.Finished, idempotency.FinishedInfo{Operation: operation, Failure: res.Failure, Took: took})
	case errors.As(err, &mismatch):
		s.log.WarnContext(ctx, "an idempotency key was used for another command and refused", "operation", operation,
			"state", mismatch.State)
		notify(o.Mismatched, idempotency.MismatchedInfo{Operation: operation, State: mismatch.State})
	case errors.As(err, &progress):
		notify(o.InProgress, idempotency.InProgressInfo{Operation: operation, Age: progress.Age})
	case errors.Is(err, idempotency.ErrExpired):
		notify(o.ExpiredRetry, idempotency.ExpiredInfo{Operation: operation})
	case errors.As(err, &unknown):
		// A wrapped UnknownError is a new one, of a COMMIT without a reply. A bare one is the state of the key.
		isNew := err != error(unknown) && !shared
		info := idempotency.UnknownInfo{Operation: operation, Stage: unknown.Stage, New: isNew}
		if isNew {
			info.Err = err
		}
		notify(o.Unknown, info)
	default:
		notify(o.Released, idempotency.ReleasedInfo{Operation: operation, Err: err})
	}
}

func notify[T any](f func(T), info T) {
	if f != nil {
		f(info)
	}
}
