package pgstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/pgsession"
)

// row is a key's row, as a statement returned it.
type row struct {
	record store.Record
	token  string
	// won: the key is the caller's. It had no row, or this statement wrote it.
	won       bool
	forgotten bool // an overdue tombstone, which counts as no row
}

// scan reads the columns that claim, get and recover share, and the columns after those into more.
func scan(r pgx.Row, key idempotency.Key, more ...any) (row, error) {
	var (
		found         row
		sum           []byte
		lease, age    int64
		steps, header []byte
		at            *time.Time

		keepBody, keepKey *int64
	)
	rec := &found.record
	res := &rec.Result
	err := r.Scan(append([]any{
		&found.won, &rec.Fence, &rec.State, &found.forgotten, &rec.Fingerprint.Version, &sum,
		&found.token, &lease, &age,
		&rec.Attempts, &rec.Reason, &rec.Stuck, &rec.Progress.Stage, &steps, &rec.Input, &keepBody, &keepKey,
		&at, &res.Code, &res.Schema, &res.Failure, &res.Resource, &header, &res.Body,
	}, more...)...)
	if err != nil {
		return row{}, pgsession.Advise(err)
	}
	rec.Key = key
	rec.Keep = idempotency.Retention{Body: kept(keepBody), Tombstone: kept(keepKey)}
	copy(rec.Fingerprint.Sum[:], sum)
	rec.LeaseLeft, rec.Age = time.Duration(lease)*time.Microsecond, time.Duration(age)*time.Microsecond
	if at != nil {
		res.At = *at
	}
	if rec.State == idempotency.Expired {
		res.Body, header, steps = nil, nil, nil
		rec.Progress = store.Progress{}
	}
	if err := decode(steps, &rec.Progress.Steps); err != nil {
		return row{}, fmt.Errorf("the steps of a record: %w", err)
	}
	if err := decode(header, &res.Header); err != nil {
		return row{}, fmt.Errorf("the header of a record: %w", err)
	}
	return found, nil
}

func decode(from []byte, to any) error {
	if from == nil {
		return nil
	}
	return json.Unmarshal(from, to)
}

// encode returns JSON as text, which every query mode of pgx takes for jsonb, or nil if empty.
func encode(v any, empty bool) (any, error) {
	if empty {
		return nil, nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// retention returns a time to keep in microseconds; nil: forever.
func retention(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	n := d.Microseconds()
	return &n
}

// kept is the inverse of retention.
func kept(us *int64) time.Duration {
	if us == nil {
		return -1
	}
	return time.Duration(*us) * time.Microsecond
}

// validText replaces the bytes that Postgres text cannot hold. A reason is often an error's message, which may quote
// any bytes.
func validText(reason string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
}
