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
	// partRecord is the sort key of a key's record; the body's sort key is in the record.
	partRecord = "record"
	// stateFree is the state after Release, in which the fence is kept for a while: the next owner's must be higher.
	stateFree = "FREE"
	// buckets is the number of partitions of the index of unfinished keys.
	buckets = 16
	// farFuture is the end of the year 9999, for stuck keys in the index.
	farFuture = 253402300799000000
)

// ttlDelay is added to an item's retention for the table's TTL: far more than two clients' clocks differ.
const ttlDelay = time.Hour

// item is an item of the table, a record or a body.
type item map[string]types.AttributeValue

// keyText is the attribute of a key: its parts are printable, so a line feed separates them.
func keyText(k idempotency.Key) string { return k.Operation + "\n" + k.Tenant + "\n" + k.Value }

func parseKey(text string) (idempotency.Key, error) {
	parts := strings.Split(text, "\n")
	if len(parts) != 3 {
		return idempotency.Key{}, fmt.Errorf("dynamostore: an item's key has %d parts, want 3: does another "+
			"program write to this table?", len(parts))
	}
	return idempotency.Key{Operation: parts[0], Tenant: parts[1], Value: parts[2]}, nil
}

// newItem returns the record of a new key. Times are microseconds since 1970.
func newItem(r idempotency.Request, token string, keep idempotency.Retention, fence, now, end, span int64) item {
	m := keyText(r.Key)
	keepBody, keepKey := keep.Terms()
	i := item{
		"key": text(m), "part": text(partRecord), "state": text(string(idempotency.InProgress)),
		"fingerprint": text(strconv.Itoa(int(r.Fingerprint.Version)) + ":" + hex.EncodeToString(r.Fingerprint.Sum[:])),
		"token":       text(token), "fence": number(fence), "lease": number(end),
		"span": number(span), "due": number(0),
		"claimed": number(now), "attempts": number(0),
		"keepBody": number(int64(keepBody)), "keepKey": number(int64(keepKey)),
		"bucket": number(int64(crc32.ChecksumIEEE([]byte(m)) % buckets)), "ready": number(end),
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

// number returns an attribute's value, 0 for none.
func (i item) number(name string) int64 {
	if n, ok := i[name].(*types.AttributeValueMemberN); ok {
		v, _ := strconv.ParseInt(n.Value, 10, 64) // the store wrote it
		return v
	}
	return 0
}

// bytes returns an attribute's value, nil for none.
func (i item) bytes(name string) []byte {
	if b, ok := i[name].(*types.AttributeValueMemberB); ok {
		return append([]byte{}, b.Value...)
	}
	return nil
}

func (i item) has(name string) bool { return i[name] != nil }

func (i item) state() idempotency.State { return idempotency.State(i.text("state")) }

// passed reports whether the record has this time, and it has certainly passed.
func (i item) passed(name string, earliest int64) bool {
	return i.has(name) && i.number(name) <= earliest
}

// free reports whether the key was released, or its tombstone is overdue and the table's TTL is late.
func (i item) free(earliest int64) bool {
	return i.text("state") == stateFree || i.passed("tomb", earliest)
}

func (i item) finished() bool {
	return i.state() == idempotency.Completed || i.state() == idempotency.FailedReplayable
}

func (i item) fingerprint() (f idempotency.Fingerprint) {
	version, sum, _ := strings.Cut(i.text("fingerprint"), ":")
	n, err := strconv.ParseInt(version, 10, 16)
	if b, hexErr := hex.DecodeString(sum); err == nil && hexErr == nil {
		f.Version = int16(n)
		copy(f.Sum[:], b)
	}
	return f
}

// record decodes an item, and reads its body from the other item.
func (s *Store) record(ctx context.Context, k idempotency.Key, i item) (store.Record, error) {
	earliest, _, err := s.now(ctx, k)
	if err != nil {
		return store.Record{}, err
	}
	rec := store.Record{
		Key: k, State: i.state(), Fingerprint: i.fingerprint(), Fence: i.number("fence"), Input: i.bytes("input"),
		Age: max(0, elapsed(earliest,
			i.number("claimed"))), Attempts: int(i.number("attempts")), Reason: i.text("reason"),
		Keep: idempotency.Retention{
			Body: time.Duration(i.number("keepBody")), Tombstone: time.Duration(i.number("keepKey")),
		},
		Stuck: i.has("stuck"), LeaseLeft: leaseLeft(i, earliest), Progress: store.Progress{Stage: idempotency.Received},
	}
	if !i.finished() {
		return rec, decode(i, "progress", &rec.Progress)
	}
	rec.LeaseLeft = 0
	rec.Result = idempotency.Result{
		Code: int(i.number("code")), Resource: i.text("resource"), Schema: int(i.number("schema")),
		Failure: i.text("failure"), At: time.UnixMicro(i.number("at")),
	}
	if !i.passed("body", earliest) {
		if !i.has("bodyPart") {
			return rec, nil
		}
		body, err := s.read(ctx, k, i.text("bodyPart"))
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
		return fmt.Errorf("dynamostore: decode %s of an item: %w", name, err)
	}
	return nil
}

// leaseLeft returns the time until a lease has certainly ended, at most its span.
func leaseLeft(i item, earliest int64) time.Duration {
	lease := i.number("lease")
	if lease == 0 {
		return 0
	}
	return elapsed(min(lease, earliest+i.number("span")), earliest)
}

func elapsed(to, from int64) time.Duration { return time.Duration(to-from) * time.Microsecond }

// micros returns a duration in microseconds, rounded up so that no lease is shortened.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d > 0 && d%time.Microsecond != 0 {
		us++
	}
	return us
}

// ttl returns the TTL attribute for the end of a retention: whole seconds since 1970.
func ttl(us int64) types.AttributeValue { return number((us+micros(ttlDelay))/1e6 + 1) }
