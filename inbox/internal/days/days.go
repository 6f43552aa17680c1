// Package days manages the tables in which an inbox remembers ids: a partition of inbox_message for each day, and
// inbox_message_any for ids without a day. It determines where an id belongs, creates days in advance, and drops the
// days that are outside every consumer's window.
package days

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Number counts days from 1970-01-01, UTC.
type Number = int32

// Prefix is the prefix of the partitions' names; [Name] follows it.
const Prefix = "inbox_message_"

// Of returns the day of a UUIDv7; false: id is no UUIDv7.
func Of(id uuid.UUID) (Number, bool) {
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		return 0, false
	}
	ms := uint64(binary.BigEndian.Uint32(id[:4]))<<16 | uint64(binary.BigEndian.Uint16(id[4:6]))
	return Number(ms / (24 * 60 * 60 * 1000)), true // 48 bits of milliseconds are 3.3 million days
}

// Begin returns the first moment of a day.
func Begin(d Number) time.Time { return time.Unix(int64(d)*24*60*60, 0).UTC() }

// Name returns the day as partitions and logs show it.
func Name(d Number) string { return Begin(d).Format("20060102") }

var errNoRow = errors.New("inbox_days has lost its row: restore it, or run `insert into inbox_days default values` " +
	"if the inbox is new")

// State is the data that determines the table of an id, as read by one transaction.
type State struct {
	Started int64  // when the server started, in microseconds since 1970
	Today   Number // by the database's clock
	Dropped Number // earlier days may be dropped
	Until   Number // the last day until which the clock is believed; -1: any
	Floor   Number // day of the consumer's first start; -1: not registered
	Dedup   string // the strategy that the consumer is registered with; "": not registered
	IDs     bool   // the consumer was moved from ids, which still count
}

// Read reads a row of [sql.State].
func (s *State) Read(row pgx.Row) error {
	var set int // of the settings, which are not used
	var dropped *Number
	var hidden string
	err := row.Scan(&set, &s.Started, &s.Today, &dropped, &s.Until, &s.Floor, &s.Dedup, &s.IDs, &hidden)
	switch {
	case err != nil:
		return err
	case hidden != "":
		return fmt.Errorf("row-level security may hide rows of %s from this role: disable it on these tables, or give "+
			"the role bypassrls", hidden)
	case dropped == nil:
		return errNoRow
	}
	s.Dropped = *dropped
	return nil
}

// farthest is how many days ahead a released id still gets its own day. A later time is garbage.
const farthest = 3650

// Released reports whether the id of an event that an operator releases or discards goes to its own day. Such an id is
// never refused. Until its day is below dropped_before, it may have an earlier row there; after that it goes to
// inbox_message_any. A consumer by number reads both tables, so its ids of future days need no day.
func (s *State) Released(id uuid.UUID) (ownDay bool) {
	d, ok := Of(id)
	return ok && d >= s.Floor && d >= s.Dropped && d <= s.Today+farthest && (s.Dedup == "id" || d <= s.Today)
}
