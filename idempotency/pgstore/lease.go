package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

var errLeaseNotPositive = errors.New("pgstore: a lease must be longer than zero")

// write runs a statement of the key's holder. The statement returns whether it wrote; otherwise done decides, by the
// state that it found and by its own word, whether an earlier copy of the request was written. It runs twice at most:
// the first run may have waited for such a copy, whose write its snapshot did not show.
func (s *Store) write(ctx context.Context, action, sql string, l store.Lease,
	done func(state idempotency.State, already bool) bool, args ...any,
) error {
	if err := l.Key.Check(); err != nil {
		return err
	}
	args = append([]any{l.Key.Tenant, l.Key.Operation, l.Key.Value, l.Fence, l.Token}, args...)
	for range 2 {
		var (
			wrote, already bool
			state          idempotency.State
		)
		if err := s.db.QueryRow(ctx, sql, args...).Scan(&wrote, &state, &already); err != nil {
			return fmt.Errorf("pgstore: %s: %w", action, err)
		}
		if wrote || done(state, already) {
			return nil
		}
	}
	return fmt.Errorf("pgstore: %s: %w", action, store.ErrLeaseLost)
}

func never(idempotency.State, bool) bool { return false }

func alreadyDone(_ idempotency.State, already bool) bool { return already }

func finished(state idempotency.State, _ bool) bool {
	return state == idempotency.Completed || state == idempotency.FailedReplayable || state == idempotency.Expired
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, l store.Lease, lease time.Duration) error {
	if lease <= 0 {
		return errLeaseNotPositive
	}
	return s.write(ctx, "extending a lease", s.sql.extend, l, never, lease.Microseconds())
}

// Save implements store.Store. A save that arrives after a later one of this Store is dropped and counts as written.
func (s *Store) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	steps, err := encode(p.Steps, len(p.Steps) == 0)
	if err != nil {
		return fmt.Errorf("pgstore: saving progress: %w", err)
	}
	return s.write(ctx, "saving progress", s.sql.save, l, alreadyDone, string(p.Stage), steps, s.writer, s.seq.Add(1))
}

// Finish implements store.Store.
func (s *Store) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	args, err := resultArgs(res, keep)
	if err != nil {
		return err
	}
	return s.write(ctx, "recording a result", s.sql.finish, l, finished, args...)
}

// resultArgs are the arguments that the statements finish and write a result share, in their order.
func resultArgs(res idempotency.Result, keep idempotency.Retention) ([]any, error) {
	header, err := encode(res.Header, res.Header == nil)
	if err != nil {
		return nil, fmt.Errorf("pgstore: recording a result: %w", err)
	}
	body, tombstone := keep.Terms()
	return []any{
		res.Code, res.Schema, res.Failure, res.Resource, header, res.Body, retention(body), retention(tombstone),
	}, nil
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.write(ctx, "releasing a key", s.sql.release, l, alreadyDone)
}

// MarkUnknown implements store.Store.
func (s *Store) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return s.write(ctx, "giving a key to recovery", s.sql.markUnknown, l, alreadyDone, validText(reason),
		after.Microseconds())
}
