package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// turns is how often a claim looks again because the key changed between two of its statements. Each turn means that
// somebody else got on.
const turns = 20

var errBusy = errors.New("pgstore: the key changes faster than it can be claimed: try again")

// Claim implements store.Store: one statement for a key that is free or decided, one more to take over, note the end of
// a lease or claim over a tombstone.
//
// It waits at most Config.Wait for a transaction of InTx that has the key; then the record says IN_PROGRESS, with the
// caller's own fingerprint, for nobody can see yet which command that is.
func (s *Store) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	if err := errors.Join(r.Key.Check(), opt.Check()); err != nil {
		return store.ClaimResult{}, err
	}
	k := r.Key
	for range turns {
		known, err := scan(s.db.QueryRow(ctx, s.sql.claim, k.Tenant, k.Operation, k.Value, r.Fingerprint.Version,
			r.Fingerprint.Sum[:],
			opt.Token, microseconds(opt.Lease), r.Input, s.lockTimeout, s.lockNumber(k)), k)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue // somebody's transaction made it meanwhile
		case pgerr.Is(err, pgerr.LockNotAvailable):
			return store.ClaimResult{Record: s.hidden(r)}, nil
		case err != nil:
			return store.ClaimResult{}, fmt.Errorf("pgstore: claiming a key: %w", err)
		case known.won:
			return fresh(r, opt, known.record.Fence), nil
		}
		out, again, err := s.met(ctx, r, opt, known)
		if !again {
			return out, err
		}
	}
	return store.ClaimResult{}, errBusy
}

// hidden is what is known of a key that another transaction holds.
func (s *Store) hidden(r idempotency.Request) store.Record {
	return store.Record{
		Key: r.Key, State: idempotency.InProgress, Fingerprint: r.Fingerprint,
		Progress: store.Progress{Stage: idempotency.Received}, LeaseLeft: s.cfg.Wait,
	}
}

// fresh is a key that was free.
func fresh(r idempotency.Request, opt store.ClaimOptions, fence int64) store.ClaimResult {
	return store.ClaimResult{
		Won:   true,
		Lease: store.Lease{Key: r.Key, Fence: fence, Token: opt.Token},
		Record: store.Record{
			Key: r.Key, State: idempotency.InProgress, Fingerprint: r.Fingerprint,
			Progress: store.Progress{Stage: idempotency.Received}, Input: append([]byte(nil), r.Input...), Fence: fence,
			LeaseLeft: opt.Lease,
		},
	}
}

// met goes by what is known of the key. again: it changed before anything was done.
func (s *Store) met(ctx context.Context, r idempotency.Request, opt store.ClaimOptions, known row) (
	out store.ClaimResult, again bool, err error,
) {
	k, rec := r.Key, known.record
	at := []any{k.Tenant, k.Operation, k.Value, rec.Fence, known.token}
	lease := microseconds(opt.Lease)
	ended := rec.LeaseLeft <= 0
	switch {
	case known.gone:
		return s.step(ctx, k, opt, s.sql.regain, append(at, opt.Token, lease, r.Fingerprint.Version,
			r.Fingerprint.Sum[:], r.Input))
	case !r.Matches(rec.Fingerprint):
	case rec.State == idempotency.InProgress && known.token == opt.Token:
		return s.step(ctx, k, opt, s.sql.regrant, append(at, lease))
	case (opt.Rerun || rec.Progress.Stage == idempotency.LocalCreated) && ended &&
		(rec.State == idempotency.InProgress || rec.State == idempotency.Unknown):
		return s.step(ctx, k, opt, s.sql.takeOver, append(at, opt.Token, lease))
	case ended && rec.State == idempotency.InProgress:
		return s.step(ctx, k, opt, s.sql.note, at)
	}
	return store.ClaimResult{Record: rec}, false, nil
}

// step is one write of a claim, which compares all that it goes by, and returns the record as it is then: the caller's,
// unless its outcome is unknown now. again: something of what it went by is otherwise.
func (s *Store) step(ctx context.Context, k idempotency.Key, opt store.ClaimOptions, sql string, args []any) (
	out store.ClaimResult, again bool, err error,
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

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	if err := k.Check(); err != nil {
		return store.Record{}, false, err
	}
	known, err := scan(s.db.QueryRow(ctx, s.sql.get, k.Tenant, k.Operation, k.Value), k)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && known.gone {
		return store.Record{}, false, nil
	}
	if err != nil {
		return store.Record{}, false, fmt.Errorf("pgstore: reading a key: %w", err)
	}
	return known.record, true, nil
}
