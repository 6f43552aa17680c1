package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
)

// maxClaimTries is how often a claim begins again because the key changed between two of its statements. Another caller
// made progress each time.
const maxClaimTries = 100

var errContended = errors.New("pgstore: the key changes faster than it can be claimed: try again")

// Claim implements store.Store. It sends one statement for a key that is free or decided, and one more to take a key
// over, to record the end of a lease or to replace a tombstone.
//
// It waits at most Config.Wait for a transaction of InTx that holds the key. Then it returns IN_PROGRESS with the
// caller's own fingerprint, because the other one is not visible yet.
func (s *Store) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	if err := errors.Join(r.Key.Check(), opt.Check()); err != nil {
		return store.ClaimResult{}, err
	}
	k := r.Key
	body, tombstone := opt.Keep.Terms()
	for range maxClaimTries {
		var known row
		err := s.db.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
			if err = pgsession.Texts(conn.Conn()); err != nil {
				return err
			}
			known, err = scan(conn.QueryRow(ctx, s.sql.claim, k.Tenant, k.Operation, k.Value, r.Fingerprint.Version,
				r.Fingerprint.Sum[:], opt.Token, opt.Lease.Microseconds(), r.Input, s.lockTimeout, lockNumber(k),
				retention(body), retention(tombstone)), k)
			return err
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue // another transaction has committed the key meanwhile
		case pgerr.Is(err, pgerr.LockNotAvailable):
			return store.ClaimResult{Record: s.lockedRecord(r)}, nil
		case err != nil:
			return store.ClaimResult{}, fmt.Errorf("pgstore: claiming a key: %w", err)
		case known.won:
			return newClaim(r, opt, known.record.Fence), nil
		}
		out, changed, err := s.claimExisting(ctx, r, opt, known)
		if !changed {
			return out, err
		}
	}
	return store.ClaimResult{}, errContended
}

// lockedRecord is the record of a key that another transaction holds and has not committed.
func (s *Store) lockedRecord(r idempotency.Request) store.Record {
	return store.Record{
		Key: r.Key, State: idempotency.InProgress, Fingerprint: r.Fingerprint,
		Progress: store.Progress{Stage: idempotency.Received}, LeaseLeft: s.cfg.Wait,
	}
}

// newClaim is the result of claiming a key that was free.
func newClaim(r idempotency.Request, opt store.ClaimOptions, fence int64) store.ClaimResult {
	return store.ClaimResult{
		Won:   true,
		Lease: store.Lease{Key: r.Key, Fence: fence, Token: opt.Token},
		Record: store.Record{
			Key: r.Key, State: idempotency.InProgress, Fingerprint: r.Fingerprint,
			Progress: store.Progress{Stage: idempotency.Received}, Input: append([]byte(nil), r.Input...), Fence: fence,
			LeaseLeft: opt.Lease, Keep: opt.Keep.Exact(),
		},
	}
}

// claimExisting claims a key that has a row, where the row allows it. changed: the row changed before the write.
func (s *Store) claimExisting(ctx context.Context, r idempotency.Request, opt store.ClaimOptions, known row) (
	out store.ClaimResult, changed bool, err error,
) {
	k, rec := r.Key, known.record
	args := []any{k.Tenant, k.Operation, k.Value, rec.Fence, known.token}
	lease := opt.Lease.Microseconds()
	ended := rec.LeaseLeft <= 0
	body, tombstone := opt.Keep.Terms()
	switch {
	case known.forgotten:
		return s.transition(ctx, k, opt, s.sql.claimTombstone, append(args, opt.Token, lease, r.Fingerprint.Version,
			r.Fingerprint.Sum[:], r.Input, retention(body), retention(tombstone)))
	case !r.Matches(rec.Fingerprint):
	case rec.State == idempotency.InProgress && known.token == opt.Token:
		return s.transition(ctx, k, opt, s.sql.regrant, append(args, lease))
	case (opt.Rerun || rec.Progress.Stage == idempotency.LocalCreated) && ended &&
		(rec.State == idempotency.InProgress || rec.State == idempotency.Unknown):
		return s.transition(ctx, k, opt, s.sql.takeOver, append(args, opt.Token, lease))
	case ended && rec.State == idempotency.InProgress:
		return s.transition(ctx, k, opt, s.sql.expireLease, args)
	}
	return store.ClaimResult{Record: rec}, false, nil
}

// transition runs one write of a claim, which compares the row that the decision was made by. It returns the record
// after the write: the caller's, unless its outcome is unknown now. changed: the row was another, and nothing was
// written.
func (s *Store) transition(ctx context.Context, k idempotency.Key, opt store.ClaimOptions, sql string, args []any) (
	out store.ClaimResult, changed bool, err error,
) {
	now, err := scan(s.db.QueryRow(ctx, sql, args...), k)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, true, nil
	}
	if err != nil {
		return out, false, fmt.Errorf("pgstore: claiming a key: %w", err)
	}
	out = store.ClaimResult{Record: now.record}
	if now.record.State == idempotency.InProgress {
		out.Won, out.Lease = true, store.Lease{Key: k, Fence: now.record.Fence, Token: opt.Token}
	}
	return out, false, nil
}

// Get implements store.Store. A key that a transaction of InTx holds is IN_PROGRESS, without a fingerprint: its command
// is not visible before COMMIT.
func (s *Store) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	if err := k.Check(); err != nil {
		return store.Record{}, false, err
	}
	for _, last := range []bool{false, true} {
		known, err := scan(s.db.QueryRow(ctx, s.sql.get, k.Tenant, k.Operation, k.Value), k)
		switch {
		case err == nil && !known.forgotten:
			return known.record, true, nil
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return store.Record{}, false, fmt.Errorf("pgstore: reading a key: %w", err)
		case last:
			return store.Record{}, false, nil
		}
		var held bool
		if err := s.db.QueryRow(ctx, s.sql.isLocked, lockNumber(k)).Scan(&held); err != nil {
			return store.Record{}, false, fmt.Errorf("pgstore: reading a key: %w", err)
		}
		if held {
			return s.lockedRecord(idempotency.Request{Key: k}), true, nil
		}
		// The transaction that held it may have committed between the two statements: read again.
	}
	return store.Record{}, false, nil
}
