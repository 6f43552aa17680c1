package pgstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// row is what a statement says of a key.
type row struct {
	record store.Record
	token  string
	won    bool // it was made by this statement, or by recover
	gone   bool // a tombstone that is overdue
}

// scan reads the columns that claim, get and recover have in common, and those behind them into more.
func scan(r pgx.Row, key idempotency.Key, more ...any) (row, error) {
	var (
		to            row
		sum           []byte
		lease, age    int64
		steps, header []byte
		at            *time.Time
	)
	rec := &to.record
	res := &rec.Result
	err := r.Scan(append([]any{
		&to.won, &rec.Fence, &rec.State, &to.gone, &rec.Fingerprint.Version, &sum, &to.token, &lease, &age,
		&rec.Attempts, &rec.Reason, &rec.Stuck, &rec.Progress.Stage, &steps, &rec.Input,
		&at, &res.Code, &res.Schema, &res.Failure, &res.Resource, &header, &res.Body,
	}, more...)...)
	if err != nil {
		return row{}, err
	}
	rec.Key = key
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
	return to, nil
}

func decode(from []byte, to any) error {
	if from == nil {
		return nil
	}
	return json.Unmarshal(from, to)
}

// encode is JSON as text, which every query mode of pgx takes for jsonb; nil for nothing.
func encode(v any, empty bool) (any, error) {
	if empty {
		return nil, nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

func microseconds(d time.Duration) int64 { return d.Microseconds() }

// until is how long something is kept, nil for ever.
func until(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	n := microseconds(d)
	return &n
}

// printable is a reason for people as text can keep it: it is often an error's, which quotes what it likes.
func printable(reason string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(reason, "\uFFFD"), "\x00", "\uFFFD")
}
