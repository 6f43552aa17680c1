package guard

import (
	"context"
	"sync"
	"time"

	"github.com/effectonce/effectonce/idempotency"
)

// flights has the attempts of this process, by key and command.
type flights struct {
	mu        sync.Mutex
	inFlight  map[flightKey]*flight
	perTenant map[string]int // attempts
}

// enter counts an attempt of a tenant, and returns false if limit is reached.
func (fs *flights) enter(tenant string, limit int) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if limit > 0 && fs.perTenant[tenant] >= limit {
		return false
	}
	if fs.perTenant == nil {
		fs.perTenant = map[string]int{}
	}
	fs.perTenant[tenant]++
	return true
}

func (fs *flights) exit(tenant string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.perTenant[tenant]--; fs.perTenant[tenant] == 0 {
		delete(fs.perTenant, tenant)
	}
}

type flightKey struct {
	key         idempotency.Key
	fingerprint idempotency.Fingerprint
}

// flight is an attempt that callers share.
type flight struct {
	key   flightKey
	since time.Time
	won   chan struct{} // closed when the attempt has won the key
	done  chan struct{} // closed at the end, after the next three fields are set
	res   idempotency.Result
	err   error
	// answered: res and err are set. False if the work panicked.
	answered bool

	// Guarded by flights.mu.
	callers   int
	cancel    context.CancelCauseFunc // of the work's context
	abandoned error                   // cause, after the last caller has left
}

type role int

const (
	leader role = iota
	follower
	alone // the flight is abandoned: make an attempt without sharing
)

// join joins the flight for a request, or begins one that the caller leads.
func (fs *flights) join(r idempotency.Request) (*flight, role) {
	key := flightKey{r.Key, r.Fingerprint}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.inFlight[key]; f != nil {
		if f.abandoned != nil {
			return nil, alone
		}
		f.callers++
		return f, follower
	}
	if fs.inFlight == nil {
		fs.inFlight = map[flightKey]*flight{}
	}
	f := &flight{key: key, since: time.Now(), callers: 1, won: make(chan struct{}), done: make(chan struct{})}
	fs.inFlight[key] = f
	return f, leader
}

// setCancel sets the function that ends the work's context. All callers may have left before.
func (fs *flights) setCancel(f *flight, cancel context.CancelCauseFunc) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.cancel = cancel
	if f.abandoned != nil {
		cancel(f.abandoned)
	}
}

// leave is called once by each caller that no longer waits.
func (fs *flights) leave(f *flight, cause error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.callers--; f.callers > 0 {
		return
	}
	f.abandoned = cause
	if f.cancel != nil {
		f.cancel(cause)
	}
}

func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	delete(fs.inFlight, f.key)
	fs.mu.Unlock()
	close(f.done)
}
