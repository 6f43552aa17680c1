package inbox

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
)

// state is the data that determines the table of an id, as read by one transaction.
type state struct{ days.State }

func stateOf(row pgx.Row) (*state, error) {
	var s state
	if err := s.Read(row); err != nil {
		return nil, err
	}
	return &s, nil
}

// route is the table in which the row of an id belongs, or why it belongs in none.
type route uint8

const (
	inDay route = iota
	inAny
	numbered // no row: the number decides

	// The routes below are quarantined: only an operator can decide the event.

	tooOld       // it may have been applied
	tooFuture    // the clock that made the id is wrong
	replayed     // it was published under another number
	oldNumbering // it belongs to an old numbering of its partition
	unnumbered   // it has no number
	otherEvents  // another event has its id
)

// undecidable reports whether the inbox cannot tell if the event was applied.
func (p route) undecidable() bool { return p >= tooOld }

// route implements P9.1. The day of an id and the floor never change, and dropped only rises, so an id never changes
// its table while its row counts.
func (s state) route(id uuid.UUID, windowDays days.Number, ahead int) route {
	d, ok := days.Of(id)
	aged := s.Today // a clock that has jumped must not age ids
	if s.Until >= 0 {
		aged = min(aged, s.Until)
	}
	switch {
	case !ok:
		return inAny
	case d < s.Floor && s.Dropped <= s.Floor:
		return inAny // history from before the first start
	case d < s.Floor, d < s.Dropped, d < aged-windowDays:
		return tooOld
	case d > s.Today+days.Number(ahead):
		return tooFuture
	}
	return inDay
}

// otherEvent is the error of an event that has the id of another.
func otherEvent(id uuid.UUID) error {
	return fmt.Errorf("its id %s is that of an event with another type, key or payload, which was decided or is "+
		"parked: its producer gives one id to two events; compare both, then release it to apply it, or discard it "+
		"(with OnFailure Halt: relay inbox skip)", id)
}

// whyUndecidable returns the error of an event that can be neither applied nor skipped.
func whyUndecidable(p route, e *event.Event, s state, windowDays days.Number) error {
	d, _ := days.Of(e.ID)
	switch p {
	case replayed:
		return errors.New("it is replayed, under a new number, so a consumer that goes by numbers cannot tell " +
			"whether it was applied: look at its business row, " +
			"then release it to apply it, or discard it")
	case oldNumbering:
		return fmt.Errorf("it is of numbering %s, which its partition has left for a later one, so nobody can tell "+
			"whether it was applied under another number: "+
			"look at its business row, then release it to apply it, or discard it", e.Position.Epoch)
	case unnumbered:
		return errors.New("it carries no number of a relay (ce_epoch, ce_lane, ce_laneseq), so a consumer that goes " +
			"by numbers cannot tell whether it was applied: " +
			"find out who wrote it into the topic, then release it to apply it, or discard it")
	case otherEvents:
		return otherEvent(e.ID)
	case tooFuture:
		return fmt.Errorf("its id is of day %s, more days ahead than are made (today is %s by the database's clock): "+
			"the clock that made it is broken; "+
			"correct it, then release the event to apply it, or discard it (where it halts: raise Config.DaysAhead "+
			"until it has passed)", days.Name(d), days.Name(s.Today))
	}
	return fmt.Errorf("its id is of day %s, older than what is remembered (window %d days, days before %s dropped, "+
		"first start on %s), so nobody can tell "+
		"whether it was applied: look at its business row, then release it to apply it, or discard it (where it "+
		"halts: relay inbox skip)", days.Name(d), windowDays, days.Name(s.Dropped), days.Name(s.Floor))
}
