package wal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// try is what one try to read the WAL tells the next.
type try struct {
	Worked bool // it did read

	stale int32 // the server's process that read the slot for nobody
	// reached is since when the database has answered, and the WAL was not read; zero: it does not answer, or the WAL
	// was read.
	reached time.Time
	// failed is how often what stands behind place could not be decoded, since nothing was confirmed; why is the last
	// error.
	place  int64
	failed int
	why    error
	remade time.Time // when the slot was given up for that
}

const (
	// mostUndecoded is how often a place may fail to be decoded before its slot is given up.
	mostUndecoded = 3
	// anew is the least pause between two slots that are given up so: what is wrong is not the slot, if the next one
	// fails too.
	anew = 10 * time.Minute
)

// Answered notes that an ordinary session works.
func (t *try) Answered() {
	if t.reached.IsZero() {
		t.reached = time.Now()
	}
}

// Restart notes that no ordinary session works, so that nobody could publish from the table either; or that it is
// decided who publishes.
func (t *try) Restart() { t.reached = time.Time{} }

// Reads notes that the WAL is read.
func (t *try) Reads() { t.Worked, t.reached = true, time.Time{} }

// TimedOut reports whether the WAL could not be read for the timeout, while the database answered.
func (t *try) TimedOut(timeout time.Duration) bool {
	return !t.reached.IsZero() && time.Since(t.reached) > timeout
}

// Begins notes where a reading begins.
func (t *try) Begins(st *state) {
	if t.place != st.Confirmed {
		t.place, t.failed = st.Confirmed, 0
	}
}

// Ended notes how it ended.
func (t *try) Ended(err error) {
	if undecoded(err) {
		t.Worked = false
		t.failed++
		t.why = err
	}
}

// Stuck: the slot does not get past its place.
func (t *try) Stuck(st *state) bool { return t.place == st.Confirmed && t.failed >= mostUndecoded }

// GiveUp makes another slot in the place of one that cannot be decoded, unless that has not helped.
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

// errServer is what the server says in place of going on.
var errServer = errors.New("relay: replication connection")

// undecoded reports whether an error says that the server, or we, cannot make out what stands in the WAL: for the next
// try it stands there as well. Postgres decodes by the catalogs of that time: rows that were inserted while there was
// no publication never can be.
func undecoded(err error) bool {
	if errors.Is(err, errUnread) {
		return true
	}
	const system = "58" // the class of errors of its disks
	return errors.Is(err, errServer) && !strings.HasPrefix(pgerr.Code(err), system) && !pgerr.Away(err) &&
		!pgerr.Retry(err) && !pgerr.Is(err, pgerr.QueryCanceled)
}
