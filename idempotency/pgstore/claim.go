package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// turns is how often a claim looks again because the key changed between two of its statements. Each turn means that somebody
// else got on.
const turns = 20

var errBusy = errors.New("pgstore: the key changes faster than it can be claimed: try again")

// Claim implements idempotency.Store: one statement for a key that is free or decided, one more to take over, note the end of a lease or
// claim over a tombstone.
//
// It waits at most Config.Wait for a transaction of InTx that has the key; then the record says IN_PROGRESS, with the caller's
// own fingerprint, for nobody can see yet which command that is.
func (s *Store) Claim(ctx context.Context, r idempotency.Request, opt idempotency.ClaimOptions) (idempotency.Claimed, error) {
	if err := errors.Join(r.Key.Check(), opt.Check()); err != nil {
		return idempotency.Claimed{}, err
	}
	k := r.Key
	for range turns {
		known, err := scan(s.db.QueryRow(ctx, s.sql.claim, k.Tenant, k.Operation, k.Value, r.Fingerprint.Version, r.Fingerprint.Sum[:],
			opt.Token, microseconds(opt.Lease), r.Input, s.lockTimeout), k)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue // somebody's transaction made it meanwhile
		case pgerr.Is(err, pgerr.LockNotAvailable):
			return idempotency.Claimed{Record: s.hidden(r)}, nil
		case err != nil:
			return idempotency.Claimed{}, fmt.Errorf("pgstore: claiming a key: %w", err)
		case known.won:
			return fresh(r, opt, known.record.Fence), nil
		}
		out, again, err := s.met(ctx, r, opt, known)
		if !again {
			return out, err
		}
	}
	return idempotency.Claimed{}, errBusy
}

// hidden is what is known of a key that another transaction holds.
func (s *Store) hidden(r idempotency.Request) idempotency.Record {
	return idempotency.Record{
		Key: r.Key, State: idempotency.InProgress, Fingerprint: r.Fingerprint, Progress: idempotency.Progress{Stage: idempotency.Received},
		LeaseLeft: s.cfg.Wait,
	}
}

// fresh is a key that was free.
func fresh(r idempotency.Request, opt idempotency.ClaimOptions, fence int64) idempotency.Claimed {
	return idempotency.Claimed{
		Won:   true,
		Lease: idempotency.Lease{Key: r.Key, Fence: fence, Token: opt.Token},
		Record: idempotency.Record{
			Key: r.Key, State: idempotency.InProgress, Fingerprint: r.Fingerprint, Progress: idempotency.Progress{Stage: idempotency.Received},
			Input: append([]byte(nil), r.Input...), Fence: fence, LeaseLeft: opt.Lease,
		},
	}
}

// met goes by what is known of the key. again: it changed before anything was done.
func (s *Store) met(ctx context.Context, r idempotency.Request, opt idempotency.ClaimOptions, known row) (out idempotency.Claimed, again bool, err error) {
	k, rec := r.Key, known.record
	at := []any{k.Tenant, k.Operation, k.Value, rec.Fence, known.token}
	lease := microseconds(opt.Lease)
	ended := rec.LeaseLeft <= 0
	switch {
	case known.gone:
		fence, again, err := s.step(ctx, s.sql.regain, append(at, opt.Token, lease, r.Fingerprint.Version, r.Fingerprint.Sum[:], r.Input)...)
		return fresh(r, opt, fence), again, err
	case !r.Matches(rec.Fingerprint):
	case rec.State == idempotency.InProgress && known.token == opt.Token:
		return s.take(ctx, r.Key, opt, s.sql.regrant, append(at, lease))
	case opt.Rerun && ended && (rec.State == idempotency.InProgress || rec.State == idempotency.Unknown):
		return s.take(ctx, r.Key, opt, s.sql.takeOver, append(at, opt.Token, lease))
	case ended && rec.State == idempotency.InProgress:
		if _, again, err := s.step(ctx, s.sql.note, at...); again || err != nil {
			return idempotency.Claimed{}, again, err
		}
		rec.State = idempotency.Unknown
	}
	return idempotency.Claimed{Record: rec}, false, nil
}

// take makes the caller the holder of a record that is there, and tells it as it is then: what could be read afterwards may be another's.
func (s *Store) take(ctx context.Context, k idempotency.Key, opt idempotency.ClaimOptions, sql string, args []any) (out idempotency.Claimed, again bool, err error) {
	taken, err := scan(s.db.QueryRow(ctx, sql, args...), k)
	if errors.Is(err, pgx.ErrNoRows) {
		return idempotency.Claimed{}, true, nil
	}
	if err != nil {
		return idempotency.Claimed{}, false, fmt.Errorf("pgstore: claiming a key: %w", err)
	}
	l := idempotency.Lease{Key: k, Fence: taken.record.Fence, Token: opt.Token}
	return idempotency.Claimed{Won: true, Lease: l, Record: taken.record}, false, nil
}

// step is one write of a claim, which compares all that it goes by. again: something of that is otherwise now.
func (s *Store) step(ctx context.Context, sql string, args ...any) (fence int64, again bool, err error) {
	var durable bool
	err = s.db.QueryRow(ctx, sql, args...).Scan(&fence, &durable)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, true, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("pgstore: claiming a key: %w", err)
	}
	return fence, false, nil
}

// Get implements idempotency.Store.
func (s *Store) Get(ctx context.Context, k idempotency.Key) (idempotency.Record, bool, error) {
	if err := k.Check(); err != nil {
		return idempotency.Record{}, false, err
	}
	known, err := scan(s.db.QueryRow(ctx, s.sql.get, k.Tenant, k.Operation, k.Value), k)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && known.gone {
		return idempotency.Record{}, false, nil
	}
	if err != nil {
		return idempotency.Record{}, false, fmt.Errorf("pgstore: reading a key: %w", err)
	}
	return known.record, true, nil
}
