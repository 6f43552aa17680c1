package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Recover implements store.Recoverer. Concurrent calls take different rows (SKIP LOCKED).
func (s *Store) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	if err := opt.Check(); err != nil {
		return nil, err
	}
	rows, err := s.db.Query(ctx, s.sql.recover, opt.Grace.Microseconds(), opt.Operations, opt.Limit, opt.Token,
		opt.Lease.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("pgstore: taking overdue keys: %w", err)
	}
	type taken struct {
		store.ClaimResult
		due int64
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (taken, error) {
		var (
			k   idempotency.Key
			due int64
		)
		got, err := scan(r, k, &k.Tenant, &k.Operation, &k.Value, &due)
		got.record.Key = k
		return taken{store.ClaimResult{
			Won: true, Lease: store.Lease{Key: k, Fence: got.record.Fence, Token: opt.Token}, Record: got.record,
		}, due}, err
	})
	if err != nil {
		return nil, fmt.Errorf("pgstore: reading overdue keys: %w", err)
	}
	slices.SortStableFunc(all, func(a, b taken) int { return cmp.Compare(a.due, b.due) })
	out := make([]store.ClaimResult, len(all))
	for i := range all {
		out[i] = all[i].ClaimResult
	}
	return out, nil
}

// Postpone implements store.Recoverer.
func (s *Store) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	return s.write(ctx, "postponing a key", s.sql.postpone, l, alreadyDone, validText(reason),
		after.Microseconds(), stuck)
}

// Sweep implements store.Recoverer: two statements, each a transaction of its own, of at most limit rows together. A
// limit of 1000 keeps it within a few milliseconds. Call it again while More is set.
func (s *Store) Sweep(ctx context.Context, limit int) (store.SweepResult, error) {
	var swept store.SweepResult
	if limit <= 0 {
		return swept, nil
	}
	for _, step := range []struct {
		sql   string
		count *int
	}{{s.sql.expireBodies, &swept.Bodies}, {s.sql.deleteTombstones, &swept.Tombstones}} {
		tag, err := s.db.Exec(ctx, step.sql, limit-swept.Bodies)
		if err != nil {
			return swept, fmt.Errorf("pgstore: sweeping: %w", err)
		}
		*step.count = int(tag.RowsAffected())
	}
	if swept.Bodies+swept.Tombstones < limit {
		return swept, nil
	}
	if err := s.db.QueryRow(ctx, s.sql.moreOverdue).Scan(&swept.More); err != nil {
		return swept, fmt.Errorf("pgstore: sweeping: %w", err)
	}
	return swept, nil
}

// Stats implements store.Recoverer. It reads only the rows of unfinished keys.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	var (
		st     store.Stats
		oldest int64
	)
	if err := s.db.QueryRow(ctx, s.sql.stats).Scan(&st.InProgress, &st.Unknown, &st.Stuck, &oldest); err != nil {
		return store.Stats{}, fmt.Errorf("pgstore: counting unfinished keys: %w", err)
	}
	st.OldestInProgress = time.Duration(oldest) * time.Microsecond
	return st, nil
}
