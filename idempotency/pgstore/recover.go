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

// Recover implements store.Recoverer. Recoverers that run at the same time pass each other (SKIP LOCKED).
func (s *Store) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	if err := opt.Check(); err != nil {
		return nil, err
	}
	rows, err := s.db.Query(ctx, s.sql.recover, microseconds(opt.Grace), opt.Operations, opt.Limit, opt.Token,
		microseconds(opt.Lease))
	if err != nil {
		return nil, fmt.Errorf("pgstore: looking for what to recover: %w", err)
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
		return nil, fmt.Errorf("pgstore: taking what is to be recovered: %w", err)
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
	return s.write(ctx, "giving a key back", s.sql.postpone, l, itIs, printable(reason), microseconds(after), stuck)
}

// Sweep implements store.Recoverer: two statements of at most limit rows, each a transaction. A limit of a thousand
// keeps it within a few milliseconds; run it again while More.
func (s *Store) Sweep(ctx context.Context, limit int) (store.SweepResult, error) {
	var swept store.SweepResult
	if limit <= 0 {
		return swept, nil
	}
	for _, one := range []struct {
		sql string
		n   *int
	}{{s.sql.erase, &swept.Bodies}, {s.sql.forget, &swept.Tombstones}} {
		tag, err := s.db.Exec(ctx, one.sql, limit-swept.Bodies)
		if err != nil {
			return swept, fmt.Errorf("pgstore: sweeping: %w", err)
		}
		*one.n = int(tag.RowsAffected())
	}
	if swept.Bodies+swept.Tombstones < limit {
		return swept, nil
	}
	if err := s.db.QueryRow(ctx, s.sql.more).Scan(&swept.More); err != nil {
		return swept, fmt.Errorf("pgstore: sweeping: %w", err)
	}
	return swept, nil
}

// Stats implements store.Recoverer. It reads what is open, and nothing else.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	var (
		st     store.Stats
		oldest int64
	)
	if err := s.db.QueryRow(ctx, s.sql.stats).Scan(&st.InProgress, &st.Unknown, &st.Stuck, &oldest); err != nil {
		return store.Stats{}, fmt.Errorf("pgstore: counting what is open: %w", err)
	}
	st.OldestInProgress = time.Duration(oldest) * time.Microsecond
	return st, nil
}
