package memstore

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Config of a [Store]. The zero value suits tests.
type Config struct {
	// Now is the clock. Nil: time.Now, which testing/synctest controls.
	Now func() time.Time
}

var errLease = errors.New("memstore: a lease must be longer than zero")

// Store is a store.Store, a Recoverer and a Lister in memory. Use [New].
type Store struct {
	now   func() time.Time
	table *rules

	mu    sync.Mutex
	keys  map[idempotency.Key]*entry
	fence int64 // the highest of all keys
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Recoverer = (*Store)(nil)
	_ store.Lister    = (*Store)(nil)
)

// entry is a key's record with its times.
type entry struct {
	store.Record // LeaseLeft and Age are set when it is read

	token   string
	claimed time.Time
	lease   time.Time // end of the owner's or recoverer's lease; zero: none
	due     time.Time // start of recovery, if unknown
	body    time.Time // end of the body's retention; zero: never
	tomb    time.Time // end of the tombstone's retention; zero: never
}

// New returns an empty store.
func New(cfg Config) *Store {
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	return &Store{now: now, table: &table, keys: map[idempotency.Key]*entry{}}
}

// situation returns an entry's situation at a time; a nil entry is free.
func (e *entry) situation(now time.Time) situation {
	passed := func(t time.Time) bool { return !t.After(now) }
	overdue := func(t time.Time) bool { return !t.IsZero() && passed(t) }
	switch {
	case e == nil || overdue(e.tomb):
		return free
	case e.State == idempotency.InProgress && passed(e.lease):
		return lapsed
	case e.State == idempotency.InProgress:
		return leased
	case e.State == idempotency.Expired:
		return expired
	case e.State != idempotency.Unknown && overdue(e.body):
		return bodyOverdue
	case e.State == idempotency.Completed:
		return completed
	case e.State == idempotency.FailedReplayable:
		return refused
	case e.Stuck:
		return stuck
	case !passed(e.lease):
		return recovering
	case !passed(e.due):
		return waiting
	}
	return due
}

// record returns a copy of the record, without a body whose retention has ended.
func (e *entry) record(now time.Time) store.Record {
	r := e.Record
	if e.situation(now) == bodyOverdue {
		r = withoutBody(r)
	}
	r.Progress, r.Input, r.Result = r.Progress.Clone(), slices.Clone(r.Input), r.Result.Clone()
	if !e.lease.IsZero() && (r.State == idempotency.InProgress || r.State == idempotency.Unknown) {
		r.LeaseLeft = e.lease.Sub(now)
	}
	r.Age = now.Sub(e.claimed)
	return r
}

// Claim implements store.Store.
func (m *Store) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult, error) {
	if err := errors.Join(ctx.Err(), r.Key.Check(), opt.Check()); err != nil {
		return store.ClaimResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, e := m.now(), m.keys[r.Key]
	act := m.table[claimKind(e, r, opt)][e.situation(now)]
	switch act {
	case grant:
		e = &entry{Record: store.Record{
			Key: r.Key, Fingerprint: r.Fingerprint,
			Progress: store.Progress{Stage: idempotency.Received}, Input: slices.Clone(r.Input),
			Keep: opt.Keep.Exact(),
		}}
		e.claimed = now
		m.keys[r.Key] = e
		m.grantLease(e, opt.Token, now.Add(opt.Lease))
	case takeOver:
		e.Stuck = false
		m.grantLease(e, opt.Token, now.Add(opt.Lease))
	case regrant:
		e.lease = now.Add(opt.Lease)
	}
	e.setState(act)
	out := store.ClaimResult{Record: e.record(now)}
	if act == grant || act == takeOver || act == regrant {
		out.Won, out.Lease = true, store.Lease{Key: r.Key, Fence: e.Fence, Token: e.token}
	}
	return out, nil
}

// claimKind returns which call a claim is.
func claimKind(e *entry, r idempotency.Request, opt store.ClaimOptions) call {
	switch {
	case e == nil:
		return claim
	case !r.Matches(e.Fingerprint):
		return claimMismatch
	case e.State == idempotency.InProgress && e.token == opt.Token:
		return claimAgain
	case opt.Rerun, e.Progress.Stage == idempotency.LocalCreated:
		return claimRerun
	}
	return claim
}

// setState sets the state after an action.
func (e *entry) setState(act action) {
	if to := stateAfter[act]; to != "" {
		e.State = to
	}
}

// grantLease makes the token the holder, with a new fence.
func (m *Store) grantLease(e *entry, token string, until time.Time) {
	m.fence++
	e.Fence, e.token, e.lease, e.due = m.fence, token, until, time.Time{}
}

// write executes a holder's call. It calls apply for an action that changes the record.
func (m *Store) write(ctx context.Context, l store.Lease, kind call,
	apply func(e *entry, act action, now time.Time),
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, e := m.now(), m.keys[l.Key]
	at := e.situation(now)
	if at != free && (e.Fence != l.Fence || e.token != l.Token) {
		kind = lateWrite
	}
	switch act := m.table[kind][at]; act {
	case lost:
		return store.ErrLeaseLost
	case noop:
		return nil
	case remove:
		delete(m.keys, l.Key)
		return nil
	default:
		apply(e, act, now)
		e.setState(act)
		return nil
	}
}

// Extend implements store.Store.
func (m *Store) Extend(ctx context.Context, l store.Lease, lease time.Duration) error {
	if lease <= 0 {
		return errLease
	}
	return m.write(ctx, l, extend, func(e *entry, _ action, now time.Time) { e.lease = now.Add(lease) })
}

// Save implements store.Store.
func (m *Store) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	p = p.Clone()
	return m.write(ctx, l, save, func(e *entry, _ action, _ time.Time) { e.Progress = p })
}

// Finish implements store.Store.
func (m *Store) Finish(ctx context.Context, l store.Lease, res idempotency.Result, keep idempotency.Retention) error {
	kind := succeed
	if res.Failure != "" {
		kind = fail
	}
	body, tomb := keep.Terms()
	res = res.Clone()
	return m.write(ctx, l, kind, func(e *entry, _ action, now time.Time) {
		res.At, res.Replayed = now, false
		e.Result, e.Input, e.Reason = res, nil, ""
		e.lease, e.due, e.Stuck = time.Time{}, time.Time{}, false
		e.body, e.tomb = after(now, body), after(now, tomb)
	})
}

// after returns now plus d, and zero for a negative d: never.
func after(now time.Time, d time.Duration) time.Time {
	if d < 0 {
		return time.Time{}
	}
	return now.Add(d)
}

// Release implements store.Store.
func (m *Store) Release(ctx context.Context, l store.Lease) error {
	return m.write(ctx, l, release, nil)
}

// MarkUnknown implements store.Store.
func (m *Store) MarkUnknown(ctx context.Context, l store.Lease, reason string, delay time.Duration) error {
	return m.write(ctx, l, markUnknown, func(e *entry, _ action, now time.Time) { e.endLease(reason, now.Add(delay)) })
}

// endLease ends the entry's lease and makes it due for recovery at a time.
func (e *entry) endLease(reason string, due time.Time) {
	e.Reason, e.due, e.lease = reason, due, time.Time{}
}

// Get implements store.Store.
func (m *Store) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, e := m.now(), m.keys[k]
	if e.situation(now) == free {
		return store.Record{}, false, nil
	}
	return e.record(now), true, nil
}

// withoutBody returns a record as a sweep of its body leaves it.
func withoutBody(r store.Record) store.Record {
	r.State, r.Result.Body, r.Result.Header, r.Progress = idempotency.Expired, nil, nil, store.Progress{}
	return r
}

// Recover implements store.Recoverer.
func (m *Store) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	if err := errors.Join(ctx.Err(), opt.Check()); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	var found []*entry
	for _, e := range m.keys {
		if opt.Operations != nil && !slices.Contains(opt.Operations, e.Key.Operation) {
			continue
		}
		// A holder that did not end its lease may have a request that still arrives, whoever noticed the end.
		inGrace := !e.lease.After(now) && e.lease.Add(opt.Grace).After(now)
		if m.table[recover][e.situation(now)] == assign && !inGrace {
			found = append(found, e)
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].overdueSince().Before(found[j].overdueSince()) })
	var out []store.ClaimResult
	for _, e := range found[:min(len(found), opt.Limit)] {
		e.Attempts++
		m.grantLease(e, opt.Token, now.Add(opt.Lease))
		e.setState(assign)
		out = append(out, store.ClaimResult{
			Won: true, Lease: store.Lease{Key: e.Key, Fence: e.Fence, Token: e.token},
			Record: e.record(now),
		})
	}
	return out, nil
}

// overdueSince returns the first time at which the entry could be recovered.
func (e *entry) overdueSince() time.Time {
	if e.due.After(e.lease) {
		return e.due
	}
	return e.lease
}

// Postpone implements store.Recoverer.
func (m *Store) Postpone(ctx context.Context, l store.Lease, reason string, delay time.Duration, toPerson bool) error {
	kind := postpone
	if toPerson {
		kind = postponeStuck
	}
	return m.write(ctx, l, kind, func(e *entry, act action, now time.Time) {
		e.endLease(reason, now.Add(delay))
		e.Stuck = act == markStuck
	})
}

// Sweep implements store.Recoverer.
func (m *Store) Sweep(ctx context.Context, limit int) (store.SweepResult, error) {
	if err := ctx.Err(); err != nil {
		return store.SweepResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out store.SweepResult
	now := m.now()
	for _, want := range []action{dropBody, remove} {
		for k, e := range m.keys {
			if m.table[sweep][e.situation(now)] != want {
				continue
			}
			if out.Bodies+out.Tombstones >= limit {
				out.More = true
				return out, nil
			}
			if want == remove {
				delete(m.keys, k)
				out.Tombstones++
				continue
			}
			e.Record = withoutBody(e.Record)
			out.Bodies++
		}
	}
	return out, nil
}

// Stuck implements store.Lister.
func (m *Store) Stuck(ctx context.Context, limit int) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []store.Record
	for _, e := range m.keys {
		if e.Stuck && len(out) < limit {
			out = append(out, e.record(m.now()))
		}
	}
	return out, nil
}

// Stats implements store.Recoverer.
func (m *Store) Stats(ctx context.Context) (store.Stats, error) {
	if err := ctx.Err(); err != nil {
		return store.Stats{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var s store.Stats
	now := m.now()
	for _, e := range m.keys {
		switch e.State {
		case idempotency.InProgress:
			s.InProgress++
			s.OldestInProgress = max(s.OldestInProgress, now.Sub(e.claimed))
		case idempotency.Unknown:
			s.Unknown++
			if e.Stuck {
				s.Stuck++
			}
		}
	}
	return s, nil
}
