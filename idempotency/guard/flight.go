package guard

import (
	"context"
	"sync"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// flights are the attempts that run in this process, by what they ask: callers of one key with two commands do not
// share.
type flights struct {
	mu     sync.Mutex
	flying map[flightKey]*flight
	open   map[string]int // attempts by tenant
}

// enter counts an attempt of a tenant's, unless there are so many.
func (fs *flights) enter(tenant string, most int) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if most > 0 && fs.open[tenant] >= most {
		return false
	}
	if fs.open == nil {
		fs.open = map[string]int{}
	}
	fs.open[tenant]++
	return true
}

func (fs *flights) exit(tenant string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open[tenant]--; fs.open[tenant] == 0 {
		delete(fs.open, tenant)
	}
}

type flightKey struct {
	key         idempotency.Key
	fingerprint idempotency.Fingerprint
}

// flight is one attempt that several callers wait for.
type flight struct {
	of      flightKey
	since   time.Time
	working chan struct{} // closed when the key is won
	done    chan struct{} // closed at the end; what follows is written before
	res     idempotency.Result
	err     error
	// answered: res and err are there. It is not when the work panicked.
	answered bool

	// Guarded by flights.mu.
	waiting   int
	cancel    context.CancelCauseFunc // of the work's context
	abandoned error                   // why everybody left
}

type role int

const (
	leader role = iota
	follower
	alone // the attempt that runs is being given up: there is nothing to share
)

// join finds the attempt that runs for this request, or makes one that the caller leads.
func (fs *flights) join(r idempotency.Request) (*flight, role) {
	of := flightKey{r.Key, r.Fingerprint}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.flying[of]; f != nil {
		if f.abandoned != nil {
			return nil, alone
		}
		f.waiting++
		return f, follower
	}
	if fs.flying == nil {
		fs.flying = map[flightKey]*flight{}
	}
	f := &flight{of: of, since: time.Now(), waiting: 1, working: make(chan struct{}), done: make(chan struct{})}
	fs.flying[of] = f
	return f, leader
}

// begin gives the flight its end. Everybody may have left before.
func (fs *flights) begin(f *flight, cancel context.CancelCauseFunc) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.cancel = cancel
	if f.abandoned != nil {
		cancel(f.abandoned)
	}
}

// leave is called once by each caller that does not wait any more.
func (fs *flights) leave(f *flight, why error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return
	}
	f.abandoned = why
	if f.cancel != nil {
		f.cancel(why)
	}
}

// end ends the flight.
func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	delete(fs.flying, f.of)
	fs.mu.Unlock()
	close(f.done)
}
