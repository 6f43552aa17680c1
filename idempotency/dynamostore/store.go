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
	// Skew is how far the clocks of DynamoDB's servers may be apart. It widens the interval in which the time is known,
	// at either end. 0 is 100 ms; negative is none, for a server of one's own.
	Skew time.Duration
}

// Store is a store.Store and a store.Recoverer over one DynamoDB table. Its methods may be called from any goroutine.
//
// The table's TTL deletes bodies and tombstones, sometimes hours late; until then the store hides overdue ones. Sweep
// has nothing to do.
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

// New returns a store on the table, which CreateTable makes and Check looks at. It talks to nobody. The client's
// retries may stand as they are.
func New(client *dynamodb.Client, table string, cfg Config) (*Store, error) {
	if client == nil || table == "" {
		return nil, errors.New("dynamostore: a client and a table's name are required")
	}
	if cfg.Skew == 0 {
		cfg.Skew = 100 * time.Millisecond
	}
	return &Store{client: client, table: table, clock: clock{skew: max(0, cfg.Skew)}, writer: rand.Text()}, nil
}

// now is the interval that holds the server's time, in microseconds since 1970. A store that has not heard from the
// server yet reads the key, for the answer's date.
func (s *Store) now(ctx context.Context, k idempotency.Key) (low, top int64, err error) {
	low, top, ok := s.clock.now()
	if ok {
		return low, top, nil
	}
	if _, err := s.read(ctx, k, partRecord); err != nil {
		return 0, 0, err
	}
	if low, top, ok = s.clock.now(); !ok {
		return 0, 0, errors.New("dynamostore: the server's responses have no Date: is there a proxy between that " +
			"removes it?")
	}
	return low, top, nil
}

// Claim implements store.Store. After an error of the server or the network the outcome is unknown: send the same claim
// again to find it out.
func (s *Store) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	if err := errors.Join(r.Key.Check(), opt.Check()); err != nil {
		return store.ClaimResult{}, err
	}
	if _, _, err := s.now(ctx, r.Key); err != nil {
		return store.ClaimResult{}, fmt.Errorf("dynamostore: claim: %w", err)
	}
	var old item // what the last attempt found; nil: nothing
	for {
		got, won, err := s.attempt(ctx, r, opt, old)
		var failed *types.ConditionalCheckFailedException
		switch {
		case errors.As(err, &failed):
			// Somebody was faster, and every round that is lost is one that somebody won.
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

// attempt does what a claim does to the item that was found; the write's condition is that it is still there as it was.
// It returns the item as it is now.
func (s *Store) attempt(ctx context.Context, r idempotency.Request, opt store.ClaimOptions, old item) (now item,
	won bool, err error,
) {
	low, top, _ := s.clock.now()
	span := micros(opt.Lease)
	ends := top + span
	if old == nil || old.free(low) {
		fresh := newItem(r, opt.Token, max(top, old.number("fence")+1), low, ends, span)
		return fresh, true, s.put(ctx, fresh, old)
	}
	state, lease := old.state(), old.number("lease")
	working, unknown := state == idempotency.InProgress, state == idempotency.Unknown
	var came store.Progress
	if err := decode(old, "progress", &came); err != nil {
		return nil, false, err
	}
	rerun := opt.Rerun || came.Stage == idempotency.LocalCreated
	switch ended := lease <= low; {
	case !r.Matches(old.print()):
	case working && old.text("token") == opt.Token:
		now, err = s.update(ctx, r.Key, `set #lease = :ends, #ready = :ends, #span = :span`, same,
			values{":ends": number(ends), ":span": number(span)}.unchanged(old))
		return now, true, err
	case rerun && ended && (working || unknown):
		now, err = s.update(ctx, r.Key,
			`set #state = :working, #token = :mine, #fence = #fence + :one, #lease = :ends, #span = :span, #due = :zero, #ready = :ends remove #stuck, #writer, #seq`, same,
			values{
				":mine": text(opt.Token), ":one": number(1), ":ends": number(ends), ":span": number(span),
				":zero": number(0),
			}.unchanged(old))
		return now, true, err
	case working && ended:
		// The lease goes with the note: a client whose clock is behind would see it run still.
		now, err = s.update(ctx, r.Key, `set #state = :unknown, #due = #lease, #lease = :zero`, same,
			values{":zero": number(0)}.unchanged(old))
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
	low, _, err := s.now(ctx, k)
	if err != nil {
		return store.Record{}, false, err
	}
	if found == nil || found.free(low) {
		return store.Record{}, false, nil
	}
	rec, err := s.record(ctx, k, found)
	if err != nil {
		return store.Record{}, false, fmt.Errorf("dynamostore: get: %w", err)
	}
	return rec, true, nil
}

// read is a strongly consistent read of one item, nil when there is none.
func (s *Store) read(ctx context.Context, k idempotency.Key, part string) (item, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: &s.table, Key: item{"key": text(member(k)), "part": text(part)}, ConsistentRead: aws.Bool(true),
	}, s.clock.watch)
	if err != nil {
		return nil, err
	}
	return out.Item, nil
}

// put writes a whole record over what was found, if that is still there as it was.
func (s *Store) put(ctx context.Context, fresh, old item) error {
	in := &dynamodb.PutItemInput{
		TableName: &s.table, Item: fresh,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		ConditionExpression:                 aws.String(`attribute_not_exists(#key)`),
	}
	if old != nil {
		in.ConditionExpression, in.ExpressionAttributeValues = aws.String(same), values{}.unchanged(old).used(same)
	}
	in.ExpressionAttributeNames = names(*in.ConditionExpression)
	_, err := s.client.PutItem(ctx, in, s.clock.watch)
	return err
}

// update changes a record under a condition and returns it as it is then; a types.ConditionalCheckFailedException has
// it as it was.
func (s *Store) update(ctx context.Context, k idempotency.Key, change, condition string, v values) (item, error) {
	v[":working"], v[":unknown"] = text(string(idempotency.InProgress)), text(string(idempotency.Unknown))
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: item{"key": text(member(k)), "part": text(partRecord)},
		UpdateExpression: &change, ConditionExpression: &condition,
		ExpressionAttributeNames: names(change + condition), ExpressionAttributeValues: v.used(change + condition),
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, s.clock.watch)
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}
