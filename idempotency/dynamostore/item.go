package dynamostore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

const (
	// partRecord is the sort key of a key's record; its body's is a name that the record has.
	partRecord = "record"
	// stateFree is what Release leaves for a while: the fence, so that the next owner's is higher.
	stateFree = "FREE"
	// buckets spread the index of unfinished keys over partitions.
	buckets = 16
	// never is a time in the index that does not come: the end of the year 9999.
	never = 253402300799000000
)

// slack is how long after its end an item is left to the table's TTL: far more than what two clients' clocks differ by.
const slack = time.Hour

// item is an item of the table, a record or a body.
type item map[string]types.AttributeValue

// member is a key as the table has it: its parts are printable, so a line feed parts them.
func member(k idempotency.Key) string { return k.Operation + "\n" + k.Tenant + "\n" + k.Value }

func keyOf(member string) (idempotency.Key, error) {
	parts := strings.Split(member, "\n")
	if len(parts) != 3 {
		return idempotency.Key{}, fmt.Errorf("dynamostore: %d parts in an item's key, want 3: who else writes to "+
			"this table?", len(parts))
	}
	return idempotency.Key{Operation: parts[0], Tenant: parts[1], Value: parts[2]}, nil
}

// newItem is the record of a key that was free. Times are microseconds since 1970.
func newItem(r idempotency.Request, token string, fence, now, ends, span int64) item {
	m := member(r.Key)
	i := item{
		"key": text(m), "part": text(partRecord), "state": text(string(idempotency.InProgress)),
		"print": text(strconv.Itoa(int(r.Fingerprint.Version)) + ":" + hex.EncodeToString(r.Fingerprint.Sum[:])),
		"token": text(token), "fence": number(fence), "lease": number(ends), "span": number(span), "due": number(0),
		"claimed": number(now), "tries": number(0),
		"bucket": number(int64(crc32.ChecksumIEEE([]byte(m)) % buckets)), "ready": number(ends),
	}
	if r.Input != nil {
		i["input"] = bytes(slices.Clone(r.Input))
	}
	return i
}

func (i item) text(name string) string {
	if s, ok := i[name].(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// number is an attribute's value, 0 when there is none.
func (i item) number(name string) int64 {
	if n, ok := i[name].(*types.AttributeValueMemberN); ok {
		v, _ := strconv.ParseInt(n.Value, 10, 64) // the store wrote it
		return v
	}
	return 0
}

// bytes is an attribute's value, nil when there is none.
func (i item) bytes(name string) []byte {
	if b, ok := i[name].(*types.AttributeValueMemberB); ok {
		return append([]byte{}, b.Value...)
	}
	return nil
}

func (i item) has(name string) bool { return i[name] != nil }

func (i item) state() idempotency.State { return idempotency.State(i.text("state")) }

// over says whether a time that the record may have has certainly passed.
func (i item) over(name string, low int64) bool { return i.has(name) && i.number(name) <= low }

// free says whether the key is nobody's: released, or its tombstone overdue and the table's TTL late.
func (i item) free(low int64) bool { return i.text("state") == stateFree || i.over("tomb", low) }

func (i item) finished() bool {
	return i.state() == idempotency.Completed || i.state() == idempotency.FailedReplayable
}

func (i item) print() (f idempotency.Fingerprint) {
	version, sum, _ := strings.Cut(i.text("print"), ":")
	n, err := strconv.ParseInt(version, 10, 16)
	if b, hexErr := hex.DecodeString(sum); err == nil && hexErr == nil {
		f.Version = int16(n)
		copy(f.Sum[:], b)
	}
	return f
}

// record is what an item says, and its body, which is read from an item of its own.
func (s *Store) record(ctx context.Context, k idempotency.Key, i item) (store.Record, error) {
	low, _, err := s.now(ctx, k)
	if err != nil {
		return store.Record{}, err
	}
	rec := store.Record{
		Key: k, State: i.state(), Fingerprint: i.print(), Fence: i.number("fence"), Input: i.bytes("input"),
		Age: max(0, elapsed(low, i.number("claimed"))), Attempts: int(i.number("tries")), Reason: i.text("reason"),
		Stuck: i.has("stuck"), LeaseLeft: left(i, low), Progress: store.Progress{Stage: idempotency.Received},
	}
	if !i.finished() {
		return rec, decode(i, "progress", &rec.Progress)
	}
	rec.LeaseLeft = 0
	rec.Result = idempotency.Result{
		Code: int(i.number("code")), Resource: i.text("resource"), Schema: int(i.number("schema")),
		Failure: i.text("failure"), At: time.UnixMicro(i.number("at")),
	}
	if !i.over("body", low) {
		if !i.has("apart") {
			return rec, nil
		}
		body, err := s.read(ctx, k, i.text("apart"))
		if err != nil {
			return rec, err
		}
		if body != nil {
			rec.Result.Body = body.bytes("content")
			if err := decode(body, "header", &rec.Result.Header); err != nil {
				return rec, err
			}
			return rec, decode(body, "progress", &rec.Progress)
		}
	}
	rec.State, rec.Progress = idempotency.Expired, store.Progress{}
	return rec, nil
}

func decode(i item, name string, to any) error {
	if !i.has(name) {
		return nil
	}
	if err := json.Unmarshal([]byte(i.text(name)), to); err != nil {
		return fmt.Errorf("dynamostore: %s in an item: %w", name, err)
	}
	return nil
}

// left is what is left of a lease until it has certainly ended, and never more than was asked for, which is its span.
func left(i item, low int64) time.Duration {
	lease := i.number("lease")
	if lease == 0 {
		return 0
	}
	return elapsed(min(lease, low+i.number("span")), low)
}

func elapsed(to, from int64) time.Duration { return time.Duration(to-from) * time.Microsecond }

// micros is a duration in microseconds, never less: a lease is not cut short.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d > 0 && d%time.Microsecond != 0 {
		us++
	}
	return us
}

// ttl is a moment in the table's TTL attribute: whole seconds since 1970.
func ttl(us int64) types.AttributeValue { return number((us+micros(slack))/1e6 + 1) }
