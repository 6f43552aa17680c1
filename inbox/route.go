package inbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

const dayMillis = 24 * 60 * 60 * 1000

// dayNumber counts days from 1970-01-01, UTC.
type dayNumber = int32

// state is what decides the table of an id, as one transaction read it.
type state struct {
	today   dayNumber // by the database's clock
	dropped dayNumber // days before it may be gone
	until   dayNumber // the last day until which the clock is believed; -1: any
	floor   dayNumber // day of the consumer's first start; -1: not registered
	dedup   Dedup     // the strategy that the consumer is registered with
	ids     bool      // it was moved from ids, and its repeats may still be known by them
}

// stateOf reads a row of sqlState.
func stateOf(row pgx.Row) (*state, error) {
	var s state
	var set, dedup string // settings, which nobody reads
	if err := row.Scan(&set, &set, &set, &set, &set, &set, &set, &s.today, &s.dropped, &s.until, &s.floor, &dedup, &s.ids); err != nil {
		return nil, err
	}
	s.dedup = dedupNamed(dedup)
	return &s, nil
}

// place is where an id's row belongs.
type place uint8

const (
	inDay place = iota
	inAny
	numbered // nowhere: its number decides

	// What follows is not decided by anybody but a person, and is quarantined.

	tooOld       // nobody can tell whether it was applied
	tooFuture    // the clock that made it is broken
	replayed     // it was published under another number
	oldNumbering // of a numbering that its partition has left
	unnumbered   // it carries no number
)

// undecidable: nobody can tell whether the event was applied.
func (p place) undecidable() bool { return p >= tooOld }

// place implements P9.1. The day inside an id never changes, the floor never changes and dropped only rises, so an id
// never changes its table while its row counts.
func (s state) place(id uuid.UUID, windowDays dayNumber, ahead int) place {
	d, ok := idDay(id)
	aged := s.today // what ages ids: a clock that has jumped does not
	if s.until >= 0 {
		aged = min(aged, s.until)
	}
	switch {
	case !ok:
		return inAny
	case d < s.floor && s.dropped <= s.floor:
		return inAny // history from before the first start
	case d < s.floor, d < s.dropped, d < aged-windowDays:
		return tooOld
	case d > s.today+dayNumber(ahead):
		return tooFuture
	}
	return inDay
}

// farthest is how many days ahead a released id still gets a day of its own. A time beyond it is garbage.
const farthest = 3650

// releasePlace is where the row of an id goes that an operator releases or discards, which is never refused: to its own
// day while that is not below dropped_before, and so can have its earlier row, else to any. By number no id is too far
// ahead to be parked with its key, and both tables are asked: days that are not made ahead are not needed.
func (s state) releasePlace(id uuid.UUID) place {
	d, ok := idDay(id)
	if !ok || d < s.floor || d < s.dropped || d > s.today+farthest || s.dedup != ByID && d > s.today {
		return inAny
	}
	return inDay
}

// idDay is the day inside a UUIDv7.
func idDay(id uuid.UUID) (dayNumber, bool) {
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		return 0, false
	}
	ms := uint64(binary.BigEndian.Uint32(id[:4]))<<16 | uint64(binary.BigEndian.Uint16(id[4:6]))
	return dayNumber(ms / dayMillis), true // 48 bits of milliseconds are 3.3 million days
}

// dayName is the day as partitions and logs show it.
func dayName(d dayNumber) string {
	return time.Unix(int64(d)*24*60*60, 0).UTC().Format("20060102")
}

// refusal is the error of an id that may be neither applied nor passed over.
func refusal(p place, e *event.Event, s state, windowDays dayNumber) error {
	d, _ := idDay(e.ID)
	switch p {
	case replayed:
		return errors.New("it is replayed, under a new number, so a consumer that goes by numbers cannot tell whether it was applied: look at its business row, " +
			"then release it to apply it, or discard it")
	case oldNumbering:
		return fmt.Errorf("it is of numbering %s, which its partition has left for a later one, so nobody can tell whether it was applied under another number: "+
			"look at its business row, then release it to apply it, or discard it", e.Position.Epoch)
	case unnumbered:
		return errors.New("it carries no number of a relay (ce_epoch, ce_lane, ce_laneseq), so a consumer that goes by numbers cannot tell whether it was applied: " +
			"find out who wrote it into the topic, then release it to apply it, or discard it")
	case tooFuture:
		return fmt.Errorf("its id is of day %s, more days ahead than are made (today is %s by the database's clock): the clock that made it is broken; "+
			"correct it, then release the event to apply it, or discard it (where it halts: raise Config.DaysAhead until it has passed)", dayName(d), dayName(s.today))
	}
	return fmt.Errorf("its id is of day %s, older than what is remembered (window %d days, days before %s dropped, first start on %s), so nobody can tell "+
		"whether it was applied: look at its business row, then release it to apply it, or discard it (where it halts: relay inbox skip)", dayName(d), windowDays, dayName(s.dropped), dayName(s.floor))
}
