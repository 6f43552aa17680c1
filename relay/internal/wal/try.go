package wal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// try carries state from one attempt to read the WAL to the next.
type try struct {
	Worked bool // it has read the WAL

	stale int32 // the backend that read the slot for a dead relay
	// reached is the time since when the database has answered while the WAL was not read; zero: it does not answer, or
	// the WAL was read.
	reached time.Time
	// failed counts the attempts that could not decode the WAL after place, since the last confirmation; why is the
	// last error.
	place  int64
	failed int
	why    error
	remade time.Time // when the slot was given up for that
}

const (
	// mostUndecoded is the number of failures to decode at one position before the slot is given up.
	mostUndecoded = 3
	// anew is the least pause between two slots that are given up this way: if the next one fails too, the slot is not
	// the problem.
	anew = 10 * time.Minute
)

// Answered records that an ordinary session works.
func (t *try) Answered() {
	if t.reached.IsZero() {
		t.reached = time.Now()
	}
}

// Restart records that no ordinary session works, so that no relay can publish from the table either; or that the
// publishing relay is decided.
func (t *try) Restart() { t.reached = time.Time{} }

// Reads records that the WAL is being read.
func (t *try) Reads() { t.Worked, t.reached = true, time.Time{} }

// TimedOut reports whether the WAL could not be read for the timeout, while the database answered.
func (t *try) TimedOut(timeout time.Duration) bool {
	return !t.reached.IsZero() && time.Since(t.reached) > timeout
}

// Begins records the position where reading begins.
func (t *try) Begins(st *state) {
	if t.place != st.Confirmed {
		t.place, t.failed = st.Confirmed, 0
	}
}

// Ended records how it ended.
func (t *try) Ended(err error) {
	if undecoded(err) {
		t.Worked = false
		t.failed++
		t.why = err
	}
}

// Stuck reports whether the slot cannot get past its position.
func (t *try) Stuck(st *state) bool { return t.place == st.Confirmed && t.failed >= mostUndecoded }

// GiveUp replaces a slot that cannot be decoded, unless that has not helped before.
func (s *slot) GiveUp(ctx context.Context, st *state, try *try) error {
	if !try.remade.IsZero() && time.Since(try.remade) < anew {
		return &unusableError{fmt.Sprintf("it cannot be decoded, nor could it be before another slot was made %v "+
			"ago; is a table of the outbox not as its migrations made it? (%v)",
			time.Since(try.remade).Round(time.Second), try.why)}
	}
	err := s.Remake(ctx, st, fmt.Sprintf("it cannot be decoded from %s on: %v", place(st.Confirmed), try.why))
	if err == nil {
		try.remade = time.Now()
	}
	return err
}

// errServer is an error of the server on the replication connection.
var errServer = errors.New("relay: replication connection")

// undecoded reports whether an error means that the server or the relay cannot decode the WAL: the next attempt would
// fail at the same position. Postgres decodes with the catalogs of the time of the write: rows that were inserted while
// the publication did not exist can never be decoded.
func undecoded(err error) bool {
	if errors.Is(err, errUnread) {
		return true
	}
	const system = "58" // the class of errors of its disks
	return errors.Is(err, errServer) && !strings.HasPrefix(pgerr.Code(err), system) && !pgerr.Away(err) &&
		!pgerr.Retry(err) && !pgerr.Is(err, pgerr.QueryCanceled)
}
