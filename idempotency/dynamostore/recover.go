package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Recover implements store.Recoverer. The index of overdue keys lags behind the table by some milliseconds; the
// conditional write that claims a key checks the table. With an error it returns the keys that it has claimed.
func (s *Store) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	if err := opt.Check(); err != nil {
		return nil, err
	}
	earliest, _, err := s.now(ctx, idempotency.Key{Operation: "recover", Value: "-"})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: recover: %w", err)
	}
	var overdue [buckets][]item
	err = eachBucket(ctx, func(ctx context.Context, b int64) error {
		return s.query(ctx, b, 0, earliest, func(i item) bool {
			if i.number("lease")+micros(opt.Grace) > earliest {
				return true
			}
			if k, err := parseKey(i.text("key")); err == nil &&
				(opt.Operations == nil || slices.Contains(opt.Operations, k.Operation)) {
				overdue[b] = append(overdue[b], i)
			}
			return len(overdue[b]) < opt.Limit
		})
	})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: recover: %w", err)
	}
	found := slices.Concat(overdue[:]...)
	sort.SliceStable(found, func(i, j int) bool { return found[i].number("ready") < found[j].number("ready") })
	var out []store.ClaimResult
	for _, i := range found {
		if len(out) == opt.Limit {
			break
		}
		got, won, err := s.claimOverdue(ctx, i, opt)
		if err != nil {
			return out, fmt.Errorf("dynamostore: recover: %w", err)
		}
		if won {
			out = append(out, got)
		}
	}
	return out, nil
}

// parallelQueries is how many buckets are queried at a time.
const parallelQueries = 4

// eachBucket calls query for all buckets, until the first error.
func eachBucket(ctx context.Context, query func(ctx context.Context, bucket int64) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelQueries)
	for b := range int64(buckets) {
		group.Go(func() error { return query(ctx, b) })
	}
	return group.Wait()
}

// query calls each for a bucket's unfinished keys that are ready between two times, longest overdue first, until it
// returns false.
func (s *Store) query(ctx context.Context, bucket, from, until int64, each func(item) (more bool)) error {
	pages := dynamodb.NewQueryPaginator(s.client, &dynamodb.QueryInput{
		TableName: &s.table, IndexName: aws.String(indexName),
		KeyConditionExpression:   aws.String(`#bucket = :bucket and #ready between :from and :until`),
		ExpressionAttributeNames: names(`#bucket #ready`), ExpressionAttributeValues: values{
			":bucket": number(bucket),
			":from":   number(from), ":until": number(until),
		},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx, s.clock.observeDates)
		if err != nil {
			return err
		}
		for _, i := range page.Items {
			if !each(i) {
				return nil
			}
		}
	}
	return nil
}

// claimOverdue claims a key for the recoverer if it is still overdue.
func (s *Store) claimOverdue(ctx context.Context, found item, opt store.RecoverOptions) (store.ClaimResult, bool,
	error,
) {
	k, err := parseKey(found.text("key"))
	if err != nil {
		return store.ClaimResult{}, false, err
	}
	earliest, latest, _ := s.clock.now()
	end := latest + micros(opt.Lease)
	got, err := s.update(ctx, k,
		`set #state = :unknown, #token = :token, #fence = #fence + :one, #attempts = #attempts + :one, #lease = :ends, #span = :span, #ready = :ends, #due = :zero remove #writer, #seq`,
		`(#state = :inProgress or #state = :unknown and attribute_not_exists(#stuck) and #due <= :now) and #lease <= :grace`,
		values{
			":token": text(opt.Token), ":one": number(1), ":zero": number(0), ":ends": number(end),
			":span": number(micros(opt.Lease)), ":now": number(earliest),
			":grace": number(earliest - micros(opt.Grace)),
		})
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		if old := item(failed.Item); old.text("token") != opt.Token || old.number("lease") != end {
			return store.ClaimResult{}, false, nil
		}
		got, err = failed.Item, nil // the SDK retried its own success
	}
	if err != nil {
		return store.ClaimResult{}, false, err
	}
	rec, err := s.record(ctx, k, got)
	if err != nil {
		return store.ClaimResult{}, false, err
	}
	return store.ClaimResult{Won: true, Lease: store.Lease{Key: k, Fence: rec.Fence, Token: opt.Token}, Record: rec},
		true, nil
}

// Sweep implements store.Recoverer. It does nothing: the table's TTL deletes.
func (s *Store) Sweep(ctx context.Context, _ int) (store.SweepResult, error) {
	return store.SweepResult{}, ctx.Err()
}

// Stats implements store.Recoverer. It reads the whole index of unfinished keys, which lags a little behind.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	var counts [buckets]store.Stats
	err := eachBucket(ctx, func(ctx context.Context, b int64) error {
		stats := &counts[b]
		return s.query(ctx, b, 0, farFuture, func(i item) bool {
			if i.state() == idempotency.InProgress {
				stats.InProgress++
				earliest, _, _ := s.clock.now()
				stats.OldestInProgress = max(stats.OldestInProgress, elapsed(earliest, i.number("claimed")))
				return true
			}
			stats.Unknown++
			if i.number("ready") == farFuture {
				stats.Stuck++
			}
			return true
		})
	})
	if err != nil {
		return store.Stats{}, fmt.Errorf("dynamostore: stats: %w", err)
	}
	var out store.Stats
	for _, stats := range counts {
		out.InProgress += stats.InProgress
		out.Unknown += stats.Unknown
		out.Stuck += stats.Stuck
		out.OldestInProgress = max(out.OldestInProgress, stats.OldestInProgress)
	}
	return out, nil
}
