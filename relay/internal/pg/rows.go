package pg

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// EachLane calls do for each lane that rows name.
func EachLane(rows pgx.Rows, do func(lane int16)) error {
	var lane int16
	_, err := pgx.ForEachRow(rows, []any{&lane}, func() error { do(lane); return nil })
	return err
}

// ReadLanes appends the lanes that rows name.
func ReadLanes(to *[]int16) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		return EachLane(rows, func(lane int16) { *to = append(*to, lane) })
	}
}

// ReadByLane reads rows of a lane and a number.
func ReadByLane(into map[int16]int64) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var lane int16
		var n int64
		_, err := pgx.ForEachRow(rows, []any{&lane, &n}, func() error { into[lane] = n; return nil })
		return err
	}
}

// ID scans a UUID without an allocation.
type ID struct{ To *uuid.UUID }

// ScanUUID implements pgtype.UUIDScanner.
func (i ID) ScanUUID(v pgtype.UUID) error {
	*i.To = v.Bytes
	return nil
}
