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

// write changes the record of the lease's holder. repeated reports whether the item that failed the condition, nil for
// none, shows that the call had succeeded and was sent again.
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

// checkAndNow checks the key and returns the server's time.
func (s *Store) checkAndNow(ctx context.Context, l store.Lease) (earliest, latest int64, err error) {
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
	earliest, latest, err := s.checkAndNow(ctx, l)
	if err != nil {
		return err
	}
	return s.write(ctx, "extend", l, `set #lease = :ends, #ready = :ends, #span = :span`,
		held+` and (#state = :inProgress or #lease > :now)`,
		values{
			":ends": number(latest + micros(lease)), ":span": number(micros(lease)),
			":now": number(earliest),
		}, notRepeated)
}

// Save implements store.Store. A save that arrives after a later one of this Store is dropped and counts as
// written.
func (s *Store) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("dynamostore: marshal progress: %w", err)
	}
	earliest, _, err := s.checkAndNow(ctx, l)
	if err != nil {
		return err
	}
	seq := s.seq.Add(1)
	return s.write(ctx, "save", l, `set #progress = :progress, #writer = :writer, #seq = :seq`,
		held+` and #lease > :now and (attribute_not_exists(#writer) or #writer <> :writer or #seq <= :seq)`,
		values{":progress": text(string(b)), ":now": number(earliest), ":writer": text(s.writer), ":seq": number(seq)},
		func(now item) bool {
			return now.heldBy(l) && now.text("writer") == s.writer && now.number("seq") > seq
		})
}

// Finish implements store.Store. It reads the record, writes the body into an item of its own, and then updates the
// record with a reference to it. If header, body and progress do not fit into an item (maxResult), only code, resource,
// schema and failure are kept, and the key is EXPIRED at once: the work is done, and no retry may repeat it.
func (s *Store) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	earliest, latest, err := s.checkAndNow(ctx, l)
	if err != nil {
		return err
	}
	old, err := s.read(ctx, l.Key, partRecord)
	switch {
	case err != nil:
		return fmt.Errorf("dynamostore: finish: %w", err)
	case old == nil || old.free(earliest) || !old.heldBy(l):
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
		":failure": text(res.Failure), ":at": number(earliest), ":zero": number(0),
	}
	body, tomb := keep.Terms()
	bodyPart, err := s.putBody(ctx, l.Key, old, res, body, latest)
	if err != nil {
		return err
	}
	if bodyPart != "" {
		change, v[":bodyPart"] = change+`, #bodyPart = :bodyPart`, text(bodyPart)
	}
	// Set by the latest time and compared with the earliest: by any client's clock the retention is not shorter.
	if body >= 0 {
		change, v[":body"] = change+`, #body = :body`, number(latest+micros(body))
	}
	if tomb >= 0 {
		change, v[":tomb"], v[":ttl"] = change+`, #tomb = :tomb, #ttl = :ttl`, number(latest+micros(tomb)),
			ttl(latest+micros(tomb))
	}
	orphaned := false // the body, if another call's result was recorded
	err = s.write(ctx, "finish", l, change+` remove #input, #reason, #progress, #writer, #seq, #stuck, #bucket, #ready`, held, v,
		func(now item) bool {
			orphaned = bodyPart != "" && now.text("bodyPart") != bodyPart
			return !now.free(earliest) && now.heldBy(l) && now.finished()
		})
	if orphaned && body < 0 {
		// It has no TTL. If this fails, it stays in the table, unused.
		_, _ = s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
			TableName: &s.table,
			Key:       item{"key": text(keyText(l.Key)), "part": text(bodyPart)},
		})
	}
	return err
}

// putBody writes body, header and progress into an item with a TTL of its own, and returns its sort key: empty if there
// is nothing to write, notKept if it is too large.
func (s *Store) putBody(ctx context.Context, k idempotency.Key, old item, res idempotency.Result, keep time.Duration,
	latest int64,
) (string, error) {
	name := "body " + rand.Text()
	i := item{"key": text(keyText(k)), "part": text(name)}
	minLen, size := len(i), len(res.Body)+len(old.text("progress"))
	if res.Body != nil {
		i["content"] = bytes(res.Body)
	}
	if res.Header != nil {
		b, err := json.Marshal(res.Header)
		if err != nil {
			return "", fmt.Errorf("dynamostore: marshal the header: %w", err)
		}
		i["header"] = text(string(b))
		size += len(b)
	}
	if old.has("progress") {
		i["progress"] = old["progress"]
	}
	if len(i) == minLen {
		return "", nil
	}
	if size > maxResult {
		return notKept, nil
	}
	if keep >= 0 {
		i["ttl"] = ttl(latest + micros(keep))
	}
	if _, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &s.table, Item: i},
		s.clock.observeDates); err != nil {
		return "", fmt.Errorf("dynamostore: finish: write the body: %w", err)
	}
	return name, nil
}

const (
	// maxResult leaves space for names and keys in the 400 KiB of an item.
	maxResult = 400<<10 - 2048
	// notKept is a sort key that no item has.
	notKept = "body not kept"
)

// Release implements store.Store. The item is kept for an hour in the state FREE, with its fence.
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	earliest, latest, err := s.checkAndNow(ctx, l)
	if err != nil {
		return err
	}
	return s.write(ctx, "release", l, `set #state = :free, #lease = :zero, #ttl = :ttl `+
		`remove #input, #progress, #writer, #seq, #stuck, #bucket, #ready, #span, #fingerprint, #reason, #due, #claimed, #attempts`, held,
		values{":free": text(stateFree), ":zero": number(0), ":ttl": ttl(latest)},
		func(old item) bool { return len(old) == 0 || old.free(earliest) })
}

// MarkUnknown implements store.Store.
func (s *Store) MarkUnknown(ctx context.Context, l store.Lease, reason string, after time.Duration) error {
	return s.giveBack(ctx, "mark unknown", l, reason, after, false, held)
}

// Postpone implements store.Recoverer.
func (s *Store) Postpone(ctx context.Context, l store.Lease, reason string, after time.Duration, stuck bool) error {
	return s.giveBack(ctx, "postpone", l, reason, after, stuck, held+` and #state = :unknown`)
}

// giveBack ends a lease. The delay begins at the earliest time, so that a key without a delay is due at once.
func (s *Store) giveBack(ctx context.Context, verb string, l store.Lease, reason string, after time.Duration,
	stuck bool, condition string,
) error {
	earliest, _, err := s.checkAndNow(ctx, l)
	if err != nil {
		return err
	}
	due := earliest + micros(after)
	change := `set #state = :unknown, #reason = :reason, #due = :due, #lease = :zero, #ready = :ready`
	v := values{":reason": text(reason), ":due": number(due), ":zero": number(0), ":ready": number(due)}
	if stuck {
		change, v[":stuck"], v[":ready"] = change+`, #stuck = :stuck`, &types.AttributeValueMemberBOOL{Value: true},
			number(farFuture)
	}
	return s.write(ctx, verb, l, change, condition+` and attribute_not_exists(#stuck)`, v,
		func(old item) bool { return old.heldBy(l) && old.state() == idempotency.Unknown && old.has("stuck") })
}
