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

// Recover implements store.Recoverer. The index that finds overdue keys lags behind the table by some milliseconds; the
// conditional write that takes one looks at the table. An error may come beside keys that were taken already.
func (s *Store) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	if err := opt.Check(); err != nil {
		return nil, err
	}
	low, _, err := s.now(ctx, idempotency.Key{Operation: "recover", Value: "-"})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: recover: %w", err)
	}
	var heads [buckets][]item
	err = eachBucket(ctx, func(ctx context.Context, b int64) error {
		return s.query(ctx, b, 0, low, func(i item) bool {
			if i.state() == idempotency.InProgress && i.number("ready")+micros(opt.Grace) > low {
				return true
			}
			if k, err := keyOf(i.text("key")); err == nil &&
				(opt.Operations == nil || slices.Contains(opt.Operations, k.Operation)) {
				heads[b] = append(heads[b], i)
			}
			return len(heads[b]) < opt.Limit
		})
	})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: recover: %w", err)
	}
	found := slices.Concat(heads[:]...)
	sort.SliceStable(found, func(i, j int) bool { return found[i].number("ready") < found[j].number("ready") })
	var out []store.ClaimResult
	for _, i := range found {
		if len(out) == opt.Limit {
			break
		}
		got, won, err := s.take(ctx, i, opt)
		if err != nil {
			return out, fmt.Errorf("dynamostore: recover: %w", err)
		}
		if won {
			out = append(out, got)
		}
	}
	return out, nil
}

// together is how many buckets are asked at a time: they are partitions of the index, so one does not slow another.
const together = 4

// eachBucket asks all buckets. The first error ends it.
func eachBucket(ctx context.Context, ask func(ctx context.Context, bucket int64) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	for b := range int64(buckets) {
		group.Go(func() error { return ask(ctx, b) })
	}
	return group.Wait()
}

// query reads the index of unfinished keys of one bucket, of those that are ready between two times, longest overdue
// first, until each says that it is enough.
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
		page, err := pages.NextPage(ctx, s.clock.watch)
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

// take hands a key to the recoverer if it is still overdue.
func (s *Store) take(ctx context.Context, found item, opt store.RecoverOptions) (store.ClaimResult, bool, error) {
	k, err := keyOf(found.text("key"))
	if err != nil {
		return store.ClaimResult{}, false, err
	}
	low, top, _ := s.clock.now()
	ends := top + micros(opt.Lease)
	got, err := s.update(ctx, k,
		`set #state = :unknown, #token = :token, #fence = #fence + :one, #tries = #tries + :one, #lease = :ends, #span = :span, #ready = :ends, #due = :zero remove #writer, #seq`,
		`#state = :unknown and attribute_not_exists(#stuck) and #lease <= :now and #due <= :now or #state = :working and #lease <= :grace`,
		values{
			":token": text(opt.Token), ":one": number(1), ":zero": number(0), ":ends": number(ends),
			":span": number(micros(opt.Lease)), ":now": number(low),
			":grace": number(low - micros(opt.Grace)),
		})
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		if old := item(failed.Item); old.text("token") != opt.Token || old.number("lease") != ends {
			return store.ClaimResult{}, false, nil
		}
		got, err = failed.Item, nil // the SDK sent its own success again
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

// Sweep implements store.Recoverer. It removes nothing: the table's TTL does.
func (s *Store) Sweep(ctx context.Context, _ int) (store.SweepResult, error) {
	return store.SweepResult{}, ctx.Err()
}

// Stats implements store.Recoverer. It reads the whole index, which has only what is unfinished, and lags a little
// behind.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	var counts [buckets]store.Stats
	err := eachBucket(ctx, func(ctx context.Context, b int64) error {
		of := &counts[b]
		return s.query(ctx, b, 0, never, func(i item) bool {
			if i.state() == idempotency.InProgress {
				of.InProgress++
				low, _, _ := s.clock.now()
				of.OldestInProgress = max(of.OldestInProgress, elapsed(low, i.number("claimed")))
				return true
			}
			of.Unknown++
			if i.number("ready") == never {
				of.Stuck++
			}
			return true
		})
	})
	if err != nil {
		return store.Stats{}, fmt.Errorf("dynamostore: stats: %w", err)
	}
	var out store.Stats
	for _, of := range counts {
		out.InProgress += of.InProgress
		out.Unknown += of.Unknown
		out.Stuck += of.Stuck
		out.OldestInProgress = max(out.OldestInProgress, of.OldestInProgress)
	}
	return out, nil
}
