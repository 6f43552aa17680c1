package idempotency

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"time"
)

// MemoryConfig is what a Memory needs to know.
type MemoryConfig struct {
	// Now is the clock. Nil: time.Now, which testing/synctest can turn.
	Now func() time.Time
}

// Memory is a Store and a Recoverer for tests, and the reference for the others: it forgets everything with its process. Use
// NewMemory.
type Memory struct {
	now   func() time.Time
	table *rules

	mu    sync.Mutex
	keys  map[Key]*entry
	fence int64 // the highest that any key got
}

var (
	_ Store     = (*Memory)(nil)
	_ Recoverer = (*Memory)(nil)
	_ Lister    = (*Memory)(nil)
)

// entry is a key's record with what only the store needs: its times.
type entry struct {
	Record // LeaseLeft and Age are counted when it is read

	token   string
	claimed time.Time
	lease   time.Time // the end of the owner's or recoverer's lease; zero: given up
	due     time.Time // of an unknown one
	body    time.Time // when it is overdue; zero: never
	tomb    time.Time // likewise
}

// NewMemory returns an empty store.
func NewMemory(cfg MemoryConfig) *Memory {
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	return &Memory{now: now, table: &table, keys: map[Key]*entry{}}
}

// situation is what the clock makes of an entry; nil is none.
func (e *entry) situation(now time.Time) situation {
	over := func(t time.Time) bool { return !t.After(now) }
	overdue := func(t time.Time) bool { return !t.IsZero() && over(t) }
	switch {
	case e == nil || overdue(e.tomb):
		return free
	case e.State == InProgress && over(e.lease):
		return lapsed
	case e.State == InProgress:
		return leased
	case e.State == Expired:
		return expired
	case e.State != Unknown && overdue(e.body):
		return stale
	case e.State == Completed:
		return done
	case e.State == FailedReplayable:
		return refused
	case e.Stuck:
		return stuck
	case !over(e.lease):
		return recovering
	case !over(e.due):
		return waiting
	}
	return due
}

// record copies what an entry knows; a stale one is told as if it were swept.
func (e *entry) record(now time.Time) Record {
	r := e.Record
	if e.situation(now) == stale {
		r = erased(r)
	}
	r.Progress, r.Input, r.Result = copyProgress(r.Progress), slices.Clone(r.Input), r.Result.Clone()
	r.LeaseLeft = 0
	if !e.lease.IsZero() && (r.State == InProgress || r.State == Unknown) {
		r.LeaseLeft = e.lease.Sub(now)
	}
	r.Age = now.Sub(e.claimed)
	return r
}

// Claim implements Store.
func (m *Memory) Claim(ctx context.Context, r Request, opt ClaimOptions) (Claimed, error) {
	if err := errors.Join(ctx.Err(), r.Key.Check(), opt.Check()); err != nil {
		return Claimed{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, e := m.now(), m.keys[r.Key]
	what := claimed(e, r, opt)
	did := m.table[what][e.situation(now)]
	switch did {
	case grant:
		e = &entry{Record: Record{Key: r.Key, Fingerprint: r.Fingerprint, Progress: Progress{Stage: Received}, Input: slices.Clone(r.Input)}}
		e.claimed = now
		m.keys[r.Key] = e
		m.give(e, opt.Token, now.Add(opt.Lease))
	case takeOver:
		e.Stuck = false
		m.give(e, opt.Token, now.Add(opt.Lease))
	case regrant:
		e.lease = now.Add(opt.Lease)
	case note:
		e.due = e.lease
	}
	e.turn(did)
	out := Claimed{Record: e.record(now)}
	if did == grant || did == takeOver || did == regrant {
		out.Won, out.Lease = true, Lease{Key: r.Key, Fence: e.Fence, Token: e.token}
	}
	return out, nil
}

// claimed says what a claim is to the entry that it met.
func claimed(e *entry, r Request, opt ClaimOptions) event {
	switch {
	case e == nil:
		return claim
	case !r.Matches(e.Fingerprint):
		return claimOther
	case e.State == InProgress && e.token == opt.Token:
		return claimAgain
	case opt.Rerun, e.Progress.Stage == LocalCreated:
		return claimRerun
	}
	return claim
}

// turn puts the entry into the state that the effect leads to.
func (e *entry) turn(did effect) {
	if to := becomes[did]; to != "" {
		e.State = to
	}
}

// give makes somebody the holder.
func (m *Memory) give(e *entry, token string, until time.Time) {
	m.fence++
	e.Fence, e.token, e.lease, e.due = m.fence, token, until, time.Time{}
}

// write does what a holder asks for: apply is called with the effect, unless nothing is to change.
func (m *Memory) write(ctx context.Context, l Lease, what event, apply func(e *entry, did effect, now time.Time)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, e := m.now(), m.keys[l.Key]
	at := e.situation(now)
	if at != free && (e.Fence != l.Fence || e.token != l.Token) {
		what = foreign
	}
	switch did := m.table[what][at]; did {
	case lost:
		return ErrLeaseLost
	case repeat:
		return nil
	case forget:
		delete(m.keys, l.Key)
		return nil
	default:
		apply(e, did, now)
		e.turn(did)
		return nil
	}
}

// Extend implements Store.
func (m *Memory) Extend(ctx context.Context, l Lease, lease time.Duration) error {
	if lease <= 0 {
		return errLease
	}
	return m.write(ctx, l, extend, func(e *entry, _ effect, now time.Time) { e.lease = now.Add(lease) })
}

// Save implements Store.
func (m *Memory) Save(ctx context.Context, l Lease, p Progress) error {
	p = copyProgress(p)
	return m.write(ctx, l, save, func(e *entry, _ effect, _ time.Time) { e.Progress = p })
}

// Finish implements Store.
func (m *Memory) Finish(ctx context.Context, l Lease, res Result, keep Retention) error {
	what := succeed
	if res.Failure != "" {
		what = fail
	}
	body, tomb := keep.Terms()
	res = res.Clone()
	return m.write(ctx, l, what, func(e *entry, _ effect, now time.Time) {
		res.At, res.Replayed = now, false
		e.Result, e.Input = res, nil
		e.lease, e.due, e.Stuck = time.Time{}, time.Time{}, false
		e.body, e.tomb = after(now, body), after(now, tomb)
	})
}

// after is now and the duration, and zero when that is negative: never.
func after(now time.Time, d time.Duration) time.Time {
	if d < 0 {
		return time.Time{}
	}
	return now.Add(d)
}

// Release implements Store.
func (m *Memory) Release(ctx context.Context, l Lease) error {
	return m.write(ctx, l, release, nil)
}

// Doubt implements Store.
func (m *Memory) Doubt(ctx context.Context, l Lease, reason string, delay time.Duration) error {
	return m.write(ctx, l, doubt, func(e *entry, _ effect, now time.Time) { e.putBack(reason, now.Add(delay)) })
}

// putBack gives up the lease of an entry.
func (e *entry) putBack(reason string, due time.Time) {
	e.Reason, e.due, e.lease = reason, due, time.Time{}
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, k Key) (Record, bool, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, e := m.now(), m.keys[k]
	if e.situation(now) == free {
		return Record{}, false, nil
	}
	return e.record(now), true, nil
}

func copyProgress(p Progress) Progress {
	p.Steps = slices.Clone(p.Steps)
	for i := range p.Steps {
		p.Steps[i].Data = slices.Clone(p.Steps[i].Data)
	}
	return p
}

// erased is a record without its body, as a sweep leaves it.
func erased(r Record) Record {
	r.State, r.Result.Body, r.Result.Header, r.Progress = Expired, nil, nil, Progress{}
	return r
}

// Recover implements Recoverer.
func (m *Memory) Recover(ctx context.Context, opt RecoverOptions) ([]Claimed, error) {
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
		if at := e.situation(now); m.table[recover][at] == hand && (at != lapsed || !e.lease.Add(opt.Grace).After(now)) {
			found = append(found, e)
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].overdueSince().Before(found[j].overdueSince()) })
	var out []Claimed
	for _, e := range found[:min(len(found), opt.Limit)] {
		e.Attempts++
		m.give(e, opt.Token, now.Add(opt.Lease))
		e.turn(hand)
		out = append(out, Claimed{Won: true, Lease: Lease{Key: e.Key, Fence: e.Fence, Token: e.token}, Record: e.record(now)})
	}
	return out, nil
}

// overdueSince is when the entry could first have been recovered: its delay was over and its lease had ended.
func (e *entry) overdueSince() time.Time {
	if e.due.After(e.lease) {
		return e.due
	}
	return e.lease
}

// Postpone implements Recoverer.
func (m *Memory) Postpone(ctx context.Context, l Lease, reason string, delay time.Duration, toPerson bool) error {
	what := postpone
	if toPerson {
		what = giveUp
	}
	return m.write(ctx, l, what, func(e *entry, did effect, now time.Time) {
		e.putBack(reason, now.Add(delay))
		e.Stuck = did == park
	})
}

// Sweep implements Recoverer.
func (m *Memory) Sweep(ctx context.Context, limit int) (Swept, error) {
	if err := ctx.Err(); err != nil {
		return Swept{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out Swept
	now := m.now()
	for _, want := range []effect{erase, forget} {
		for k, e := range m.keys {
			if m.table[sweep][e.situation(now)] != want {
				continue
			}
			if out.Bodies+out.Tombstones >= limit {
				out.More = true
				return out, nil
			}
			if want == forget {
				delete(m.keys, k)
				out.Tombstones++
				continue
			}
			e.Record = erased(e.Record)
			out.Bodies++
		}
	}
	return out, nil
}

// Stuck implements Lister.
func (m *Memory) Stuck(ctx context.Context, limit int) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Record
	for _, e := range m.keys {
		if e.Stuck && len(out) < limit {
			out = append(out, e.record(m.now()))
		}
	}
	return out, nil
}

// Stats implements Recoverer.
func (m *Memory) Stats(ctx context.Context) (Stats, error) {
	if err := ctx.Err(); err != nil {
		return Stats{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var s Stats
	now := m.now()
	for _, e := range m.keys {
		switch e.State {
		case InProgress:
			s.InProgress++
			s.OldestInProgress = max(s.OldestInProgress, now.Sub(e.claimed))
		case Unknown:
			s.Unknown++
			if e.Stuck {
				s.Stuck++
			}
		}
	}
	return s, nil
}
