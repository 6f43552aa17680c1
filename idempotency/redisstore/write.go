package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

var errLease = errors.New("redisstore: a lease must be longer than zero")

// write runs a script by which the holder of a key writes.
func (s *Store) write(ctx context.Context, verb string, sc *redis.Script, l store.Lease, args ...any) error {
	if err := l.Key.Check(); err != nil {
		return err
	}
	done, err := s.run(ctx, sc, l.Key, append([]any{l.Token, l.Fence}, args...)...).Int()
	if err != nil {
		return fmt.Errorf("redisstore: %s: the outcome is unknown: %w", verb, err)
	}
	if done == 0 {
		return store.ErrLeaseLost
	}
	return nil
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, l store.Lease, lease time.Duration) error {
	if lease <= 0 {
		return errLease
	}
	return s.write(ctx, "extend", s.scripts.extend, l, micros(lease))
}

// Save implements store.Store. A save that arrives after a later one of this Store is dropped and
// counts as written.
func (s *Store) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("redisstore: write progress as JSON: %w", err)
	}
	return s.write(ctx, "save", s.scripts.save, l, b, s.writer, s.seq.Add(1))
}

// Finish implements store.Store.
func (s *Store) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	state := idempotency.Completed
	if res.Failure != "" {
		state = idempotency.FailedReplayable
	}
	header := ""
	if res.Header != nil {
		b, err := json.Marshal(res.Header)
		if err != nil {
			return fmt.Errorf("redisstore: write a header as JSON: %w", err)
		}
		header = string(b)
	}
	body, tomb := keep.Terms()
	return s.write(ctx, "finish", s.scripts.finish, l,
		string(state), res.Code, res.Resource, res.Schema, res.Failure, header, optional(res.Body), retention(body),
		retention(tomb))
}

// retention returns a time to keep in microseconds; -1: forever.
func retention(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return micros(d)
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.write(ctx, "release", s.scripts.release, l)
}

// MarkUnknown implements store.Store.
func (s *Store) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return s.write(ctx, "mark unknown", s.scripts.giveBack, l, reason, micros(after), 0, 0)
}

// Postpone implements store.Recoverer.
func (s *Store) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	person := 0
	if stuck {
		person = 1
	}
	return s.write(ctx, "postpone", s.scripts.giveBack, l, reason, micros(after), 1, person)
}
