package dynamostore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Config of a [Store]. The zero value is safe.
type Config struct {
	// Skew is the maximum difference between the clocks of DynamoDB's servers. It widens the interval of the server's
	// time at both ends. 0 is 100 ms; negative is none, for a single server.
	Skew time.Duration
}

// Store is a store.Store and a store.Recoverer over one DynamoDB table. It is safe for concurrent use.
//
// The table's TTL deletes bodies and tombstones, sometimes hours late; until then the store hides overdue ones. Sweep
// does nothing.
type Store struct {
	client *dynamodb.Client
	table  string
	clock  clock
	writer string       // identifies this Store's saves
	seq    atomic.Int64 // numbers them
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Recoverer = (*Store)(nil)
	_ store.Lister    = (*Store)(nil)
)

// New returns a store on the table, see CreateTable and Check. It sends no request. The client's default retries are
// suitable.
func New(client *dynamodb.Client, table string, cfg Config) (*Store, error) {
	if client == nil || table == "" {
		return nil, errors.New("dynamostore: a client and a table's name are required")
	}
	if cfg.Skew == 0 {
		cfg.Skew = 100 * time.Millisecond
	}
	return &Store{client: client, table: table, clock: clock{skew: max(0, cfg.Skew)}, writer: rand.Text()}, nil
}

// now returns the interval of the server's time, in microseconds since 1970. Before the first response it reads the
// key, for the response's Date.
func (s *Store) now(ctx context.Context, k idempotency.Key) (earliest, latest int64, err error) {
	earliest, latest, ok := s.clock.now()
	if ok {
		return earliest, latest, nil
	}
	if _, err := s.read(ctx, k, partRecord); err != nil {
		return 0, 0, err
	}
	if earliest, latest, ok = s.clock.now(); !ok {
		return 0, 0, errors.New("dynamostore: the server's responses have no Date: does a proxy remove it?")
	}
	return earliest, latest, nil
}

// Claim implements store.Store. After an error of the server or the network the outcome is unknown: send the same claim
// again.
func (s *Store) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	if err := errors.Join(r.Key.Check(), opt.Check()); err != nil {
		return store.ClaimResult{}, err
	}
	if _, _, err := s.now(ctx, r.Key); err != nil {
		return store.ClaimResult{}, fmt.Errorf("dynamostore: claim: %w", err)
	}
	var old item // as the last attempt found it; nil: none
	for {
		got, won, err := s.attempt(ctx, r, opt, old)
		var failed *types.ConditionalCheckFailedException
		switch {
		case errors.As(err, &failed):
			// Another write was faster. Each failed attempt means that another one succeeded.
			old = failed.Item
			if len(old) == 0 {
				old = nil
			}
			continue
		case err != nil:
			return store.ClaimResult{}, fmt.Errorf("dynamostore: claim: the outcome is unknown: %w", err)
		}
		rec, err := s.record(ctx, r.Key, got)
		if err != nil {
			return store.ClaimResult{}, fmt.Errorf("dynamostore: claim: %w", err)
		}
		out := store.ClaimResult{Won: won, Record: rec}
		if won {
			out.Lease = store.Lease{Key: r.Key, Fence: rec.Fence, Token: opt.Token}
		}
		return out, nil
	}
}

// attempt applies a claim to the item that was read, on condition that it is unchanged, and returns the new item.
func (s *Store) attempt(ctx context.Context, r idempotency.Request, opt store.ClaimOptions, old item) (now item,
	won bool, err error,
) {
	earliest, latest, _ := s.clock.now()
	span := micros(opt.Lease)
	end := latest + span
	if old == nil || old.free(earliest) {
		created := newItem(r, opt.Token, opt.Keep, max(latest, old.number("fence")+1), earliest, end, span)
		return created, true, s.put(ctx, created, old)
	}
	state, lease := old.state(), old.number("lease")
	inProgress, unknown := state == idempotency.InProgress, state == idempotency.Unknown
	var progress store.Progress
	if err := decode(old, "progress", &progress); err != nil {
		return nil, false, err
	}
	rerun := opt.Rerun || progress.Stage == idempotency.LocalCreated
	switch ended := lease <= earliest; {
	case !r.Matches(old.fingerprint()):
	case inProgress && old.text("token") == opt.Token:
		now, err = s.update(ctx, r.Key, `set #lease = :ends, #ready = :ends, #span = :span`, unchanged,
			values{":ends": number(end), ":span": number(span)}.old(old))
		return now, true, err
	case rerun && ended && (inProgress || unknown):
		now, err = s.update(ctx, r.Key,
			`set #state = :inProgress, #token = :newToken, #fence = #fence + :one, #lease = :ends, #span = :span, #due = :zero, #ready = :ends remove #stuck, #writer, #seq`, unchanged,
			values{
				":newToken": text(opt.Token), ":one": number(1), ":ends": number(end), ":span": number(span),
				":zero": number(0),
			}.old(old))
		return now, true, err
	case inProgress && ended:
		// The lease stays: recovery's grace counts from its end.
		now, err = s.update(ctx, r.Key, `set #state = :unknown`, unchanged, values{}.old(old))
		return now, false, err
	}
	return old, false, nil
}

// Get implements store.Store, by strongly consistent reads.
func (s *Store) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	if err := k.Check(); err != nil {
		return store.Record{}, false, err
	}
	found, err := s.read(ctx, k, partRecord)
	if err != nil {
		return store.Record{}, false, fmt.Errorf("dynamostore: get: %w", err)
	}
	earliest, _, err := s.now(ctx, k)
	if err != nil {
		return store.Record{}, false, err
	}
	if found == nil || found.free(earliest) {
		return store.Record{}, false, nil
	}
	rec, err := s.record(ctx, k, found)
	if err != nil {
		return store.Record{}, false, fmt.Errorf("dynamostore: get: %w", err)
	}
	return rec, true, nil
}

// read reads one item, strongly consistent; nil: none.
func (s *Store) read(ctx context.Context, k idempotency.Key, part string) (item, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: &s.table, Key: item{"key": text(keyText(k)), "part": text(part)}, ConsistentRead: aws.Bool(true),
	}, s.clock.observeDates)
	if err != nil {
		return nil, err
	}
	return out.Item, nil
}

// put writes a whole record, on condition that the old one is unchanged.
func (s *Store) put(ctx context.Context, created, old item) error {
	in := &dynamodb.PutItemInput{
		TableName: &s.table, Item: created,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		ConditionExpression:                 aws.String(`attribute_not_exists(#key)`),
	}
	if old != nil {
		in.ConditionExpression, in.ExpressionAttributeValues = aws.String(unchanged), values{}.old(old).used(unchanged)
	}
	in.ExpressionAttributeNames = names(*in.ConditionExpression)
	_, err := s.client.PutItem(ctx, in, s.clock.observeDates)
	return err
}

// update changes a record under a condition and returns the new one; a types.ConditionalCheckFailedException has the
// old one.
func (s *Store) update(ctx context.Context, k idempotency.Key, change, condition string, v values) (item, error) {
	v[":inProgress"], v[":unknown"] = text(string(idempotency.InProgress)), text(string(idempotency.Unknown))
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: item{"key": text(keyText(k)), "part": text(partRecord)},
		UpdateExpression: &change, ConditionExpression: &condition,
		ExpressionAttributeNames: names(change + condition), ExpressionAttributeValues: v.used(change + condition),
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, s.clock.observeDates)
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}
