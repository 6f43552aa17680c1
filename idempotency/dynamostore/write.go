package dynamostore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

var errLease = errors.New("dynamostore: a lease must be longer than zero")

// write changes a record whose holder the lease is. repeated judges what a failed condition found, nil for nothing:
// whether the call was sent again after it had succeeded.
func (s *Store) write(ctx context.Context, verb string, l store.Lease, change, condition string, v values,
	repeated func(old item) bool,
) error {
	v[":token"], v[":fence"] = text(l.Token), number(l.Fence)
	_, err := s.update(ctx, l.Key, change, condition, v)
	var failed *types.ConditionalCheckFailedException
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &failed):
		return fmt.Errorf("dynamostore: %s: the outcome is unknown: %w", verb, err)
	case repeated(failed.Item):
		return nil
	}
	return store.ErrLeaseLost
}

func notRepeated(item) bool { return false }

func (i item) heldBy(l store.Lease) bool {
	return i.text("token") == l.Token && i.number("fence") == l.Fence
}

// begin checks a key and tells the time.
func (s *Store) begin(ctx context.Context, l store.Lease) (low, top int64, err error) {
	if err := l.Key.Check(); err != nil {
		return 0, 0, err
	}
	return s.now(ctx, l.Key)
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, l store.Lease, lease time.Duration) error {
	if lease <= 0 {
		return errLease
	}
	low, top, err := s.begin(ctx, l)
	if err != nil {
		return err
	}
	return s.write(ctx, "extend", l, `set #lease = :ends, #ready = :ends, #span = :span`,
		mine+` and (#state = :working or #lease > :now)`,
		values{":ends": number(top + micros(lease)), ":span": number(micros(lease)), ":now": number(low)}, notRepeated)
}

// Save implements store.Store. A save that arrives after a later one of this Store is dropped and counts as
// written.
func (s *Store) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("dynamostore: write progress as JSON: %w", err)
	}
	low, _, err := s.begin(ctx, l)
	if err != nil {
		return err
	}
	seq := s.seq.Add(1)
	return s.write(ctx, "save", l, `set #progress = :progress, #writer = :writer, #seq = :seq`,
		mine+` and #lease > :now and (attribute_not_exists(#writer) or #writer <> :writer or #seq <= :seq)`,
		values{":progress": text(string(b)), ":now": number(low), ":writer": text(s.writer), ":seq": number(seq)},
		func(now item) bool {
			return now.heldBy(l) && now.text("writer") == s.writer && now.number("seq") > seq
		})
}

// Finish implements store.Store. It reads the record, writes the body into an item of its own, which nobody sees yet,
// and turns the record. Of a result that does not fit into an item (maxResult with header and progress) code, resource,
// schema and failure are kept: it is EXPIRED at once, for the work is done, and no retry may do it again.
func (s *Store) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	low, top, err := s.begin(ctx, l)
	if err != nil {
		return err
	}
	old, err := s.read(ctx, l.Key, partRecord)
	switch {
	case err != nil:
		return fmt.Errorf("dynamostore: finish: %w", err)
	case old == nil || old.free(low) || !old.heldBy(l):
		return store.ErrLeaseLost
	case old.finished():
		return nil
	}
	state := idempotency.Completed
	if res.Failure != "" {
		state = idempotency.FailedReplayable
	}
	change := `set #state = :state, #code = :code, #resource = :resource, #schema = :schema, #failure = :failure, #at = :at, #lease = :zero, #due = :zero`
	v := values{
		":state": text(string(state)), ":code": number(int64(res.Code)), ":resource": text(res.Resource),
		":schema":  number(int64(res.Schema)),
		":failure": text(res.Failure), ":at": number(low), ":zero": number(0),
	}
	body, tomb := keep.Terms()
	apart, err := s.putBody(ctx, l.Key, old, res, body, top)
	if err != nil {
		return err
	}
	if apart != "" {
		change, v[":apart"] = change+`, #apart = :apart`, text(apart)
	}
	// From the late end, and judged by the early one: a result is kept for no less than its terms by anybody's clock.
	if body >= 0 {
		change, v[":body"] = change+`, #body = :body`, number(top+micros(body))
	}
	if tomb >= 0 {
		change, v[":tomb"], v[":ttl"] = change+`, #tomb = :tomb, #ttl = :ttl`, number(top+micros(tomb)),
			ttl(top+micros(tomb))
	}
	orphan := false // the body, when another call's result stands
	err = s.write(ctx, "finish", l, change+` remove #input, #progress, #writer, #seq, #stuck, #bucket, #ready`, mine, v,
		func(now item) bool {
			orphan = apart != "" && now.text("apart") != apart
			return !now.free(low) && now.heldBy(l) && now.finished()
		})
	if orphan && body < 0 {
		// Nothing else ends it; if this fails, it stays, and nobody ever looks at it.
		_, _ = s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
			TableName: &s.table,
			Key:       item{"key": text(member(l.Key)), "part": text(apart)},
		})
	}
	return err
}

// putBody writes what is sensitive of a result, and the progress, into an item with an end of its own, and returns its
// name: empty when there is nothing to keep, and notKept when it is too large.
func (s *Store) putBody(ctx context.Context, k idempotency.Key, old item, res idempotency.Result, keep time.Duration,
	top int64,
) (string, error) {
	name := "body " + rand.Text()
	i := item{"key": text(member(k)), "part": text(name)}
	least, size := len(i), len(res.Body)+len(old.text("progress"))
	if res.Body != nil {
		i["content"] = bytes(res.Body)
	}
	if res.Header != nil {
		b, err := json.Marshal(res.Header)
		if err != nil {
			return "", fmt.Errorf("dynamostore: write a header as JSON: %w", err)
		}
		i["header"] = text(string(b))
		size += len(b)
	}
	if old.has("progress") {
		i["progress"] = old["progress"]
	}
	if len(i) == least {
		return "", nil
	}
	if size > maxResult {
		return notKept, nil
	}
	if keep >= 0 {
		i["ttl"] = ttl(top + micros(keep))
	}
	if _, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &s.table, Item: i},
		s.clock.watch); err != nil {
		return "", fmt.Errorf("dynamostore: finish: keep the body: %w", err)
	}
	return name, nil
}

const (
	// maxResult leaves room for names and keys in the 400 KiB of an item.
	maxResult = 400<<10 - 2048
	// notKept is the name of an item that never is.
	notKept = "body not kept"
)

// Release implements store.Store. The item stays for an hour, free, with its fence.
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	low, top, err := s.begin(ctx, l)
	if err != nil {
		return err
	}
	return s.write(ctx, "release", l, `set #state = :free, #lease = :zero, #ttl = :ttl `+
		`remove #input, #progress, #writer, #seq, #stuck, #bucket, #ready, #span, #print, #reason, #due, #claimed, #tries`, mine,
		values{":free": text(stateFree), ":zero": number(0), ":ttl": ttl(top)},
		func(old item) bool { return len(old) == 0 || old.free(low) })
}

// MarkUnknown implements store.Store.
func (s *Store) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return s.giveBack(ctx, "mark unknown", l, reason, after, false, mine)
}

// Postpone implements store.Recoverer.
func (s *Store) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	return s.giveBack(ctx, "postpone", l, reason, after, stuck, mine+` and #state = :unknown`)
}

// giveBack ends a lease. The delay counts from the early end of the interval, so that a key without a delay is due at
// once.
func (s *Store) giveBack(ctx context.Context, verb string, l store.Lease, reason string, after time.Duration,
	stuck bool, condition string,
) error {
	low, _, err := s.begin(ctx, l)
	if err != nil {
		return err
	}
	due := low + micros(after)
	change := `set #state = :unknown, #reason = :reason, #due = :due, #lease = :zero, #ready = :ready`
	v := values{":reason": text(reason), ":due": number(due), ":zero": number(0), ":ready": number(due)}
	if stuck {
		change, v[":stuck"], v[":ready"] = change+`, #stuck = :stuck`, &types.AttributeValueMemberBOOL{Value: true},
			number(never)
	}
	return s.write(ctx, verb, l, change, condition+` and attribute_not_exists(#stuck)`, v,
		func(old item) bool { return old.heldBy(l) && old.state() == idempotency.Unknown && old.has("stuck") })
}
