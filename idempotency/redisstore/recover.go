package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// page is how many entries of a list one request reads.
const page = 100

// candidate is a key that looked overdue; the script that takes it checks again.
type candidate struct {
	key   idempotency.Key
	since float64
}

// Recover implements store.Recoverer. It looks in every bucket and takes the longest overdue keys first, each by a
// script that checks again. With an error it may return keys that it has taken already.
func (s *Store) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	if err := opt.Check(); err != nil {
		return nil, err
	}
	found, err := s.overdue(ctx, opt)
	if err != nil {
		return nil, fmt.Errorf("redisstore: recover: %w", err)
	}
	var out []store.ClaimResult
	for _, c := range found {
		if len(out) == opt.Limit {
			break
		}
		won, rec, token, err := decode(c.key, s.run(ctx, s.scripts.recover, c.key, opt.Token, micros(opt.Lease),
			micros(opt.Grace)))
		if err != nil {
			return out, fmt.Errorf("recover: %w", err)
		}
		if won {
			out = append(out, store.ClaimResult{Won: true, Lease: store.Lease{
				Key: c.key, Fence: rec.Fence,
				Token: token,
			}, Record: rec})
		}
	}
	return out, nil
}

// list is the state of reading one of a bucket's two lists that may have overdue keys.
type list struct {
	name   string
	until  time.Time
	offset int64
	found  int
}

// overdue reads all buckets' lists from their heads, a page of each per round trip, until each has ended or given
// opt.Limit keys of the wanted operations. It uses one server's time; the script that takes a key decides by its own.
func (s *Store) overdue(ctx context.Context, opt store.RecoverOptions) ([]candidate, error) {
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	var open []*list
	for b := range uint32(buckets) {
		open = append(open, &list{name: s.list(b, "unknown"), until: now},
			&list{name: s.list(b, "working"), until: now.Add(-opt.Grace)})
	}
	var found []candidate
	for len(open) > 0 {
		pipe := s.client.Pipeline()
		pages := make([]*redis.ZSliceCmd, len(open))
		for i, l := range open {
			pages[i] = pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
				Key: l.name, ByScore: true, Start: "-inf", Stop: strconv.FormatInt(l.until.UnixMicro(), 10),
				Offset: l.offset, Count: page,
			})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}
		var more []*list
		for i, l := range open {
			some, err := wanted(pages[i].Val(), opt.Operations)
			if err != nil {
				return nil, err
			}
			found = append(found, some...)
			l.offset, l.found = l.offset+page, l.found+len(some)
			if l.found < opt.Limit && len(pages[i].Val()) == page {
				more = append(more, l)
			}
		}
		open = more
	}
	sort.SliceStable(found, func(i, j int) bool { return found[i].since < found[j].since })
	return found, nil
}

// wanted returns the entries of the operations; nil: all entries.
func wanted(entries []redis.Z, operations []string) ([]candidate, error) {
	var found []candidate
	for _, e := range entries {
		name, _ := e.Member.(string)
		k, err := keyOf(name)
		if err != nil {
			return nil, err
		}
		if operations == nil || slices.Contains(operations, k.Operation) {
			found = append(found, candidate{key: k, since: e.Score})
		}
	}
	return found, nil
}

// Sweep implements store.Recoverer. It removes nothing: Redis itself expires bodies and tombstones.
func (s *Store) Sweep(ctx context.Context, _ int) (store.SweepResult, error) {
	return store.SweepResult{}, ctx.Err()
}

// Stats implements store.Recoverer. Buckets are counted one after the other.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	var out store.Stats
	now, err := s.client.Time(ctx).Result()
	pipe := s.client.Pipeline()
	var counts [buckets][3]*redis.IntCmd
	var oldest [buckets]*redis.ZSliceCmd
	for b := range uint32(buckets) {
		for i, name := range []string{"working", "unknown", "stuck"} {
			counts[b][i] = pipe.ZCard(ctx, s.list(b, name))
		}
		oldest[b] = pipe.ZRangeWithScores(ctx, s.list(b, "since"), 0, 0)
	}
	_, pipeErr := pipe.Exec(ctx)
	if err := errors.Join(err, pipeErr); err != nil {
		return out, fmt.Errorf("redisstore: stats: %w", err)
	}
	for b := range buckets {
		out.InProgress += counts[b][0].Val()
		out.Unknown += counts[b][1].Val() + counts[b][2].Val()
		out.Stuck += counts[b][2].Val()
		for _, z := range oldest[b].Val() {
			out.OldestInProgress = max(out.OldestInProgress, elapsed(now.UnixMicro(), int64(z.Score)))
		}
	}
	return out, nil
}
