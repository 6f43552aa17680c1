package redisstore

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// decode reads what the scripts' answer() returns: a verdict, the time, the record's fields and its body's.
func decode(k idempotency.Key, cmd *redis.Cmd) (verdict bool, rec store.Record, token string, err error) {
	parts, err := cmd.Slice()
	if err != nil {
		return false, rec, "", fmt.Errorf("redisstore: the outcome is unknown: %w", err)
	}
	if len(parts) != 4 {
		return false, rec, "", fmt.Errorf("redisstore: the server's answer has %d parts, want 4", len(parts))
	}
	won, _ := parts[0].(int64)
	d := decoder{fields: fields(parts[2]), body: fields(parts[3])}
	if now, ok := parts[1].(string); ok {
		d.now = d.number("the time", now)
	}
	rec = d.record(k)
	return won == 1, rec, d.fields["token"], d.err
}

// fields returns the names and values of HGETALL, which Lua returns as one list, as a map.
func fields(v any) map[string]string {
	list, _ := v.([]any)
	m := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := list[i].(string)
		value, _ := list[i+1].(string)
		m[name] = value
	}
	return m
}

// decoder reads one answer and remembers its first error.
type decoder struct {
	now          int64
	fields, body map[string]string
	err          error
}

func (d *decoder) number(name, s string) int64 {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && d.err == nil {
		d.err = fmt.Errorf("redisstore: %s in a record: %w", name, err)
	}
	return n
}

func (d *decoder) int(name string) int64 { return d.number(name, d.fields[name]) }

// kept is the inverse of retention.
func (d *decoder) kept(s string) time.Duration {
	return max(time.Duration(d.number("a retention", s))*time.Microsecond, -1)
}

func (d *decoder) json(name, s string, to any) {
	if s == "" {
		return
	}
	if err := json.Unmarshal([]byte(s), to); err != nil && d.err == nil {
		d.err = fmt.Errorf("redisstore: %s in a record: %w", name, err)
	}
}

func (d *decoder) record(k idempotency.Key) store.Record {
	if len(d.fields) == 0 {
		return store.Record{}
	}
	rec := store.Record{
		Key: k, State: idempotency.State(d.fields["state"]), Fingerprint: d.fingerprint(d.fields["print"]),
		Fence: d.int("fence"), Age: elapsed(d.now, d.int("claimed")), Attempts: int(d.int("tries")),
		Reason: d.fields["reason"], Stuck: d.fields["stuck"] == "1",
		Progress: store.Progress{Stage: idempotency.Received},
	}
	body, tomb, _ := strings.Cut(d.fields["keep"], " ")
	rec.Keep = idempotency.Retention{Body: d.kept(body), Tombstone: d.kept(tomb)}
	d.json("progress", d.fields["progress"], &rec.Progress)
	if input, ok := d.fields["input"]; ok {
		rec.Input = []byte(input)
	}
	if lease := d.int("lease"); lease != 0 {
		rec.LeaseLeft = elapsed(lease, d.now)
	}
	if rec.State == idempotency.Completed || rec.State == idempotency.FailedReplayable {
		d.result(&rec)
	}
	return rec
}

// result adds the result of a finished record. The record is EXPIRED when its body is overdue, or was removed early.
func (d *decoder) result(rec *store.Record) {
	rec.Result = idempotency.Result{
		Code: int(d.int("code")), Resource: d.fields["resource"], Schema: int(d.int("schema")),
		Failure: d.fields["failure"], At: time.UnixMicro(d.int("at")),
	}
	until, bounded := d.fields["body"]
	if bounded && d.number("body", until) <= d.now || d.int("apart") > 0 && len(d.body) == 0 {
		rec.State, rec.Progress = idempotency.Expired, store.Progress{}
		return
	}
	d.json("progress", d.body["progress"], &rec.Progress)
	d.json("header", d.body["header"], &rec.Result.Header)
	if body, ok := d.body["body"]; ok {
		rec.Result.Body = []byte(body)
	}
}

func elapsed(to, from int64) time.Duration { return time.Duration(to-from) * time.Microsecond }

// formatFingerprint returns the stored form of a fingerprint: "1:2cf2...".
func formatFingerprint(f idempotency.Fingerprint) string {
	return strconv.Itoa(int(f.Version)) + ":" + hex.EncodeToString(f.Sum[:])
}

func (d *decoder) fingerprint(s string) (f idempotency.Fingerprint) {
	version, sum, _ := strings.Cut(s, ":")
	f.Version = int16(d.number("a fingerprint's version", version))
	if n, err := hex.Decode(f.Sum[:], []byte(sum)); (err != nil || n != len(f.Sum)) && d.err == nil {
		d.err = fmt.Errorf("redisstore: a record's fingerprint has %d bytes: %w", n, err)
	}
	return f
}
