package inbox

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// releaseWaits holds the waits of releases that run again later: their effect returned Retryable or lost
// against another transaction, or their session ended in it.
type releaseWaits map[releaseName]*releaseWait

// releaseName is the hash of a key, or the id of a single event.
type releaseName struct {
	hash string
	id   int64
}

type releaseWait struct {
	since, until time.Time
	pace         backoff.BackOff
	losses       int  // sessions that ended in the effect, and conflicts
	noted        bool // recorded in the row, where an operator can clear it
}

func (r *released) name() releaseName { return releaseName{string(r.hash), r.id} }

// due reports whether a release may run now: its wait is over, or an operator has ended it.
func (w releaseWaits) due(r *released) bool {
	wait := w[r.name()]
	return wait == nil || !time.Now().Before(wait.until) || wait.noted && !r.noted
}

// noted records that the row says that a release waits.
func (w releaseWaits) noted(r *released) {
	if wait := w[r.name()]; wait != nil {
		wait.noted = true
	}
}

// retryable delays a release, and returns since when it has been delayed.
func (w releaseWaits) retryable(r *released, first time.Duration) (since time.Time) {
	return w.putOff(r, first).since
}

// lost delays a release whose session ended in its effect, or that lost a conflict, and returns how often that
// happened.
func (w releaseWaits) lost(r *released, first time.Duration) (times int) {
	wait := w.putOff(r, first)
	wait.losses++
	return wait.losses
}

func (w releaseWaits) putOff(r *released, first time.Duration) *releaseWait {
	wait := w[r.name()]
	if wait == nil {
		wait = &releaseWait{since: time.Now(), pace: pauses(first, 2*time.Minute, 2.3)}
		w[r.name()] = wait
	}
	wait.until, wait.noted = time.Now().Add(wait.pace.NextBackOff()), false
	return wait
}

func (w releaseWaits) forget(r *released) {
	delete(w, r.name())
}
