package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// walTry is what one try to read the WAL tells the next.
type walTry struct {
	stale  int32 // the server's process that read the slot for nobody
	worked bool  // it did read
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
	// walUndecoded is how often a place may fail to be decoded before its slot is given up.
	walUndecoded = 3
	// walAnew is the least pause between two slots that are given up so: what is wrong is not the slot, if the next one
	// fails too.
	walAnew = 10 * time.Minute
)

// answered notes that an ordinary session works.
func (t *walTry) answered() {
	if t.reached.IsZero() {
		t.reached = time.Now()
	}
}

// restart notes that no ordinary session works, so that nobody could publish from the table either; or that it is
// decided who publishes.
func (t *walTry) restart() { t.reached = time.Time{} }

// reads notes that the WAL is read.
func (t *walTry) reads() { t.worked, t.reached = true, time.Time{} }

// hopeless reports whether the database has answered for that long, and the WAL could not be read.
func (t *walTry) hopeless(patience time.Duration) bool {
	return !t.reached.IsZero() && time.Since(t.reached) > patience
}

// begins notes where a reading begins.
func (t *walTry) begins(st *walState) {
	if t.place != st.confirmed {
		t.place, t.failed = st.confirmed, 0
	}
}

// ended notes how it ended.
func (t *walTry) ended(err error) {
	if undecoded(err) {
		t.worked = false
		t.failed++
		t.why = err
	}
}

// stuck: the slot does not get past its place.
func (t *walTry) stuck(st *walState) bool { return t.place == st.confirmed && t.failed >= walUndecoded }

// errServer is what the server says in place of going on.
var errServer = errors.New("relay: replication connection")

// undecoded reports whether an error says that the server, or we, cannot make out what stands in the WAL: for the next
// try it stands there as well. Postgres decodes by the catalogs of that time: rows that were inserted while there was
// no publication never can be.
func undecoded(err error) bool {
	if errors.Is(err, errWAL) {
		return true
	}
	const system = "58" // the class of errors of its disks
	return errors.Is(err, errServer) && !strings.HasPrefix(pgerr.Code(err), system) && !pgerr.Away(err) && !pgerr.Retry(err) && !pgerr.Is(err, pgerr.QueryCanceled)
}

// giveUpSlot makes another slot in the place of one that cannot be decoded, unless that has not helped.
func (r *Relay) giveUpSlot(ctx context.Context, s *session, st *walState, try *walTry) error {
	if !try.remade.IsZero() && time.Since(try.remade) < walAnew {
		return &unusableError{fmt.Sprintf("it cannot be decoded, nor could it be before another slot was made %v ago; is a table of the outbox not as its migrations made it? (%v)",
			time.Since(try.remade).Round(time.Second), try.why)}
	}
	err := r.explained(r.remakeSlot(ctx, s, st, fmt.Sprintf("it cannot be decoded from %X/%X on: %v", st.confirmed>>32, uint32(st.confirmed), try.why)))
	if err == nil {
		try.remade = time.Now()
	}
	return err
}
