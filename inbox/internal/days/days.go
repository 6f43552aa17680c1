// Package days keeps the tables in which an inbox remembers ids: a partition for each day of inbox_message, and
// inbox_message_any for ids of no day. It says where an id belongs, makes days ahead of time, and drops those that
// every consumer's window has left.
package days

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Number counts days from 1970-01-01, UTC.
type Number = int32

// Prefix is how the names of the partitions begin; [Name] follows.
const Prefix = "inbox_message_"

// Of is the day inside a UUIDv7.
func Of(id uuid.UUID) (Number, bool) {
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		return 0, false
	}
	ms := uint64(binary.BigEndian.Uint32(id[:4]))<<16 | uint64(binary.BigEndian.Uint16(id[4:6]))
	return Number(ms / (24 * 60 * 60 * 1000)), true // 48 bits of milliseconds are 3.3 million days
}

// Begin is the first moment of a day.
func Begin(d Number) time.Time { return time.Unix(int64(d)*24*60*60, 0).UTC() }

// Name is the day as partitions and logs show it.
func Name(d Number) string { return Begin(d).Format("20060102") }

// State is what decides the table of an id, as one transaction read it.
type State struct {
	Today   Number // by the database's clock
	Dropped Number // days before it may be gone
	Until   Number // the last day until which the clock is believed; -1: any
	Floor   Number // day of the consumer's first start; -1: not registered
	Dedup   string // the strategy that the consumer is registered with; "": not registered
	IDs     bool   // it was moved from ids, and its repeats may still be known by them
}

// Read reads a row of [sql.State].
func (s *State) Read(row pgx.Row) error {
	var set string // settings, which nobody reads
	return row.Scan(&set, &set, &set, &set, &set, &set, &set, &s.Today, &s.Dropped, &s.Until, &s.Floor, &s.Dedup,
		&s.IDs)
}

// farthest is how many days ahead a released id still gets a day of its own. A time beyond it is garbage.
const farthest = 3650

// Released reports whether the row of an id that an operator releases or discards goes to its own day. Such an id is
// never refused: while its day is not below dropped_before it may have an earlier row there; else its row goes to any.
// A consumer by number asks both tables, so an id ahead of today needs no day.
func (s *State) Released(id uuid.UUID) (ownDay bool) {
	d, ok := Of(id)
	return ok && d >= s.Floor && d >= s.Dropped && d <= s.Today+farthest && (s.Dedup == "id" || d <= s.Today)
}
