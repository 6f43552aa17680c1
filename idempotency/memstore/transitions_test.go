package memstore

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// The tests of this file try every call on a record in every situation, without the model: each takes milliseconds.

var (
	testNow  = time.Unix(1e9, 0)
	testKey  = idempotency.Key{Operation: "o", Value: "k"}
	testMine = idempotency.Fingerprint{Version: 1}
	testHeld = store.Lease{Key: testKey, Fence: 5, Token: "own"}
)

const testFence = 7 // the highest of the store; the record's is lower

// record is an entry in a situation: each of its times is the last instant of what it was or the first of what it is.
type record struct {
	name string
	at   situation
	e    *entry
}

// records returns all situations, the ones that come about in several ways with each of them.
func records() []record {
	now, later := testNow, testNow.Add(1)
	made := func(state idempotency.State, change func(e *entry)) *entry {
		e := &entry{
			Record: store.Record{
				Key: testKey, State: state, Fingerprint: testMine, Input: []byte("input"), Fence: 5, Attempts: 2,
				Reason:   "a former one",
				Progress: store.Progress{Stage: idempotency.ProviderRequestSent, Steps: []store.Step{{Name: "a"}}},
			},
			token: "own", claimed: now.Add(-time.Hour),
		}
		if state != idempotency.InProgress && state != idempotency.Unknown {
			e.Input, e.Result = nil, idempotency.Result{Code: 201, Resource: "r", At: now.Add(-time.Minute)}
			if state != idempotency.Expired {
				e.Result.Body, e.Result.Header = []byte("body"), map[string][]string{"H": {"v"}}
			}
		}
		change(e)
		return e
	}
	kept := func(*entry) {}
	const completed, failed, gone = idempotency.Completed, idempotency.FailedReplayable, idempotency.Expired
	return []record{
		{"none", free, nil},
		{"expired, its tombstone overdue", free, made(gone, func(e *entry) { e.body, e.tomb = now, now })},
		{"completed, its tombstone overdue", free, made(completed, func(e *entry) { e.body, e.tomb = now, now })},
		{"leased", leased, made(idempotency.InProgress, func(e *entry) { e.lease = later })},
		{"lapsed", lapsed, made(idempotency.InProgress, func(e *entry) { e.lease = now })},
		{"waiting", waiting, made(idempotency.Unknown, func(e *entry) { e.due = later })},
		{"due after a delay", due, made(idempotency.Unknown, func(e *entry) { e.due = now })},
		{"due as its recoverer's lease ended", due, made(idempotency.Unknown, func(e *entry) { e.lease = now })},
		{"recovering", recovering, made(idempotency.Unknown, func(e *entry) { e.lease = later })},
		{"stuck", stuck, made(idempotency.Unknown, func(e *entry) { e.due, e.Stuck = now, true })},
		{"completed", done, made(completed, func(e *entry) { e.body, e.tomb = later, later })},
		{"completed for ever", done, made(completed, kept)},
		{"refused", refused, made(failed, func(e *entry) { e.body, e.tomb = later, later })},
		{"completed, its body overdue", stale, made(completed, func(e *entry) { e.body, e.tomb = now, later })},
		{"refused, its body overdue", stale, made(failed, func(e *entry) { e.body = now })},
		{"expired", expired, made(gone, func(e *entry) { e.body, e.tomb = now, later })},
		{"expired for ever", expired, made(gone, func(e *entry) { e.body = now })},
	}
}

// TestTransitions_Situation: each instant belongs to one of them.
func TestTransitions_Situation(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		if at := r.e.situation(testNow); at != r.at {
			t.Errorf("%s: situation %d, want %d", r.name, at, r.at)
		}
	}
}

// known is what is told of an entry.
func (r record) known() store.Record {
	e := *r.e
	e.Age = testNow.Sub(e.claimed)
	if !e.lease.IsZero() {
		e.LeaseLeft = e.lease.Sub(testNow)
	}
	if r.at == stale {
		e.State, e.Progress, e.Result.Body, e.Result.Header = idempotency.Expired, store.Progress{}, nil, nil
	}
	return e.Record
}

// stored returns a store with copies of entries under their keys.
func stored(entries ...*entry) *Store {
	m := New(Config{Now: func() time.Time { return testNow }})
	m.fence = testFence
	for _, e := range entries {
		if e != nil {
			is := *e
			m.keys[e.Key] = &is
		}
	}
	return m
}

// same compares what a call answered, and what it left in the store, with what they are to be.
func same(t *testing.T, name string, m *Store, got, answer any, want *entry) {
	t.Helper()
	if !reflect.DeepEqual(got, answer) {
		t.Errorf("%s: the answer is\n%+v, want\n%+v", name, got, answer)
	}
	if e := m.keys[testKey]; !reflect.DeepEqual(e, want) {
		t.Errorf("%s: the record is\n%+v, want\n%+v", name, e, want)
	}
}

// change is what a call makes of an entry, which stands there already; an entry without a state is removed.
type change map[situation]func(e *entry)

func in(all ...situation) func(do func(e *entry)) change {
	return func(do func(e *entry)) change {
		c := change{}
		for _, at := range all {
			c[at] = do
		}
		return c
	}
}

func (c change) and(more change) change {
	for at, do := range more {
		c[at] = do
	}
	return c
}

// TestTransitions_Claim: who claims, wins in the situations listed, and is told what is there in all others.
func TestTransitions_Claim(t *testing.T) {
	t.Parallel()
	until := testNow.Add(time.Minute)
	request := idempotency.Request{Key: testKey, Fingerprint: testMine, Input: []byte("mine")}
	other := idempotency.Request{Key: testKey, Fingerprint: idempotency.Fingerprint{Version: 2}}
	owner := store.ClaimOptions{Token: "own", Lease: time.Minute}
	another := store.ClaimOptions{Token: "another", Lease: time.Minute}
	rerun := func(o store.ClaimOptions) store.ClaimOptions { o.Rerun = true; return o }
	take := func(e *entry) {
		e.State, e.Fence, e.token, e.lease, e.due, e.Stuck = idempotency.InProgress, testFence+1, "another", until,
			time.Time{}, false
	}
	takeBack := func(e *entry) { take(e); e.token = "own" }
	again := in(leased, lapsed)(func(e *entry) { e.lease = until })
	none := idempotency.Stage("")
	for _, c := range []struct {
		name  string
		r     idempotency.Request
		opt   store.ClaimOptions
		stage idempotency.Stage // of the record, when set
		wins  change            // beside free, which all win
	}{
		{"another attempt", request, another, none, nil},
		{"the owner's attempt", request, owner, none, again},
		{"another attempt that reruns", request, rerun(another), none, in(lapsed, waiting, due, stuck)(take)},
		{"the owner's attempt that reruns", request, rerun(owner), none, in(waiting, due, stuck)(takeBack).and(again)},
		{
			"another attempt, the local part done", request, another, idempotency.LocalCreated,
			in(lapsed, waiting, due, stuck)(take),
		},
		{"another command", other, another, none, nil},
		{"another command that reruns, under the owner's token", other, rerun(owner), idempotency.LocalCreated, nil},
	} {
		for _, r := range records() {
			if r.e != nil && c.stage != none {
				r.e.Progress.Stage = c.stage
			}
			m := stored(r.e)
			got, err := m.Claim(t.Context(), c.r, c.opt)
			if err != nil {
				t.Fatal(err)
			}
			want, won := r, true
			switch does := c.wins[r.at]; {
			case r.at == free:
				want.e = &entry{
					Record: store.Record{
						Key: testKey, State: idempotency.InProgress, Fingerprint: c.r.Fingerprint, Input: c.r.Input,
						Progress: store.Progress{Stage: idempotency.Received}, Fence: testFence + 1,
					},
					token: c.opt.Token, claimed: testNow, lease: until,
				}
			case does != nil:
				does(want.e)
			default:
				won = false
				if r.at == lapsed && c.r.Matches(testMine) {
					want.e.State, want.e.due = idempotency.Unknown, want.e.lease
				}
			}
			answer := store.ClaimResult{Won: won, Record: want.known()}
			if won {
				answer.Lease = store.Lease{Key: testKey, Fence: want.e.Fence, Token: want.e.token}
			}
			same(t, c.name+", "+r.name, m, got, answer, want.e)
		}
	}
}

// write is a call of a holder, and what it makes of the record.
type write struct {
	name string
	call func(ctx context.Context, m *Store, l store.Lease) error
	does change
	done []situation // nothing is left to do
}

func writes() []write {
	const minute = time.Minute
	never, later := time.Time{}, testNow.Add(minute)
	progress := store.Progress{Stage: idempotency.ProviderConfirmed, Steps: []store.Step{{Name: "b"}}}
	type call = func(ctx context.Context, m *Store, l store.Lease) error
	finish := func(res idempotency.Result, keep idempotency.Retention) call {
		res.Replayed = true
		return func(ctx context.Context, m *Store, l store.Lease) error { return m.Finish(ctx, l, res, keep) }
	}
	open, finished := in(leased, lapsed, waiting, due, recovering, stuck), []situation{done, refused, stale, expired}
	kept := func(state idempotency.State, res idempotency.Result, body, tomb time.Time) change {
		res.At = testNow
		return open(func(e *entry) {
			e.State, e.Result, e.Input, e.Stuck = state, res, nil, false
			e.lease, e.due, e.body, e.tomb = never, never, body, tomb
		})
	}
	success := idempotency.Result{Code: 202, Body: []byte("x"), Header: map[string][]string{"A": {"b"}}}
	failure := idempotency.Result{Code: 402, Failure: "declined"}
	unknown := func(e *entry) { e.State, e.Reason, e.due, e.lease = idempotency.Unknown, "why", later, never }
	postponed := in(waiting, due, recovering)
	return []write{
		{"Extend", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.Extend(ctx, l, minute)
		}, in(leased, lapsed, recovering)(func(e *entry) { e.lease = later }), nil},
		{"Extend by an instant", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.Extend(ctx, l, 1)
		}, in(leased, lapsed, recovering)(func(e *entry) { e.lease = testNow.Add(1) }), nil},
		{"Save", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.Save(ctx, l, progress)
		}, in(leased, recovering)(func(e *entry) { e.Progress = progress }), nil},
		{
			"Finish", finish(success, idempotency.Retention{Body: minute, Tombstone: 2 * minute}),
			kept(idempotency.Completed, success, later, later.Add(minute)), finished,
		},
		{
			"Finish for ever", finish(success, idempotency.Retention{Body: -1, Tombstone: -1}),
			kept(idempotency.Completed, success, never, never), finished,
		},
		{
			"Finish with a failure", finish(failure, idempotency.Retention{}),
			kept(idempotency.FailedReplayable, failure, testNow.Add(24*time.Hour), testNow.Add(72*time.Hour)), finished,
		},
		{"Release", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.Release(ctx, l)
		}, open(func(e *entry) { *e = entry{} }), []situation{free}},
		{"MarkUnknown", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.MarkUnknown(ctx, l, "why", minute)
		}, in(leased, lapsed, waiting, due, recovering)(unknown), []situation{stuck}},
		{"Postpone", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.Postpone(ctx, l, "why", minute, false)
		}, postponed(unknown), []situation{stuck}},
		{"Postpone to a person", func(ctx context.Context, m *Store, l store.Lease) error {
			return m.Postpone(ctx, l, "why", minute, true)
		}, postponed(func(e *entry) { unknown(e); e.Stuck = true }), []situation{stuck}},
	}
}

// TestTransitions_Write: what the holder writes changes the record in the situations listed, says nil in those in which
// nothing is left to do, and ErrLeaseLost in all others. What anybody else writes changes nothing.
func TestTransitions_Write(t *testing.T) {
	t.Parallel()
	strangers := []store.Lease{{Key: testKey, Fence: 4, Token: "own"}, {Key: testKey, Fence: 5, Token: "former"}}
	for _, w := range writes() {
		for _, r := range records() {
			for _, l := range strangers {
				m := stored(r.e)
				var want error = store.ErrLeaseLost
				if r.at == free && slices.Contains(w.done, free) {
					want = nil
				}
				same(t, "a stranger's "+w.name+", "+r.name, m, w.call(t.Context(), m, l), want, r.e)
			}
			m := stored(r.e)
			got, answer, want := w.call(t.Context(), m, testHeld), error(nil), r.e
			if does := w.does[r.at]; does != nil {
				if does(want); want.State == "" {
					want = nil
				}
			} else if !slices.Contains(w.done, r.at) {
				answer = store.ErrLeaseLost
			}
			same(t, w.name+", "+r.name, m, got, answer, want)
		}
	}
}

// TestTransitions_Recover: a recoverer gets what is due, and what has lapsed longer than its grace.
func TestTransitions_Recover(t *testing.T) {
	t.Parallel()
	for _, opt := range []store.RecoverOptions{
		{}, {Operations: []string{"x", "o"}}, {Operations: []string{"x"}}, {Operations: []string{}}, {Grace: 1},
	} {
		opt.Limit, opt.Lease, opt.Token = 2, time.Minute, "recoverer"
		for _, r := range records() {
			m := stored(r.e)
			got, err := m.Recover(t.Context(), opt)
			if err != nil {
				t.Fatal(err)
			}
			var answer []store.ClaimResult
			mine := opt.Operations == nil || slices.Contains(opt.Operations, testKey.Operation)
			if mine && (r.at == due || r.at == lapsed && opt.Grace == 0) {
				r.e.State, r.e.Fence, r.e.token, r.e.Attempts = idempotency.Unknown, testFence+1, opt.Token, 3
				r.e.lease, r.e.due = testNow.Add(time.Minute), time.Time{}
				lease := store.Lease{Key: testKey, Fence: testFence + 1, Token: opt.Token}
				answer = []store.ClaimResult{{Won: true, Lease: lease, Record: r.known()}}
			}
			same(t, "Recover, "+r.name, m, got, answer, r.e)
		}
	}
}

// overdue returns an entry under a key of its own.
func overdue(key string, state idempotency.State, change func(e *entry)) *entry {
	e := &entry{claimed: testNow.Add(-time.Minute)}
	e.Key, e.State = idempotency.Key{Operation: "o", Value: key}, state
	change(e)
	return e
}

// TestTransitions_RecoverTheLongestOverdue: first, by whichever of its delay and its lease ended last.
func TestTransitions_RecoverTheLongestOverdue(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) time.Time { return testNow.Add(-d) }
	m := stored(
		overdue("3", idempotency.Unknown, func(e *entry) { e.lease = ago(3) }),
		overdue("5", idempotency.Unknown, func(e *entry) { e.due = ago(5) }),
		overdue("2", idempotency.Unknown, func(e *entry) { e.lease, e.due = ago(9), ago(2) }),
		overdue("1", idempotency.Unknown, func(e *entry) { e.lease, e.due = ago(1), ago(9) }),
		overdue("4", idempotency.InProgress, func(e *entry) { e.lease = ago(4) }),
	)
	for _, c := range []struct {
		grace time.Duration
		limit int
		want  []string
	}{{5, 1, []string{"5"}}, {4, 1, []string{"4"}}, {0, 2, []string{"3", "2"}}, {0, 9, []string{"1"}}, {0, 9, nil}} {
		got, err := m.Recover(t.Context(), store.RecoverOptions{
			Limit: c.limit, Lease: time.Minute, Grace: c.grace, Token: "t",
		})
		var keys []string
		for _, r := range got {
			keys = append(keys, r.Record.Key.Value)
		}
		if err != nil || !slices.Equal(keys, c.want) {
			t.Errorf("with the grace %d, %q, %v; want %q", c.grace, keys, err, c.want)
		}
	}
}

// TestTransitions_Sweep: what is overdue is removed, bodies before tombstones, and nothing else.
func TestTransitions_Sweep(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		m := stored(r.e)
		got, err := m.Sweep(t.Context(), 1)
		var want store.SweepResult
		switch {
		case r.at == stale:
			want.Bodies = 1
			r.e.Record = erased(r.e.Record)
		case r.at == free && r.e != nil:
			want.Tombstones, r.e = 1, nil
		}
		same(t, "Sweep, "+r.name, m, got, want, r.e)
		if err != nil {
			t.Error(err)
		}
	}
	full := func() *Store {
		body := func(e *entry) { e.body = testNow }
		tomb := func(e *entry) { e.body, e.tomb = testNow, testNow }
		return stored(overdue("a", idempotency.Completed, body), overdue("b", idempotency.FailedReplayable, body),
			overdue("c", idempotency.Completed, tomb), overdue("d", idempotency.Expired, tomb))
	}
	for limit, want := range []store.SweepResult{
		{More: true},
		{Bodies: 1, More: true},
		{Bodies: 2, More: true},
		{Bodies: 2, Tombstones: 1, More: true},
		{Bodies: 2, Tombstones: 2},
		{Bodies: 2, Tombstones: 2},
	} {
		m := full()
		if got, err := m.Sweep(t.Context(), limit); err != nil || got != want || len(m.keys) != 4-want.Tombstones {
			t.Errorf("Sweep with the limit %d: %+v, %v, %d left; want %+v", limit, got, err, len(m.keys), want)
		}
	}
}

// TestTransitions_Read: nothing changes by a look.
func TestTransitions_Read(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		m := stored(r.e)
		got, there, err := m.Get(t.Context(), testKey)
		var want store.Record
		if r.at != free {
			want = r.known()
		}
		same(t, "Get, "+r.name, m, got, want, r.e)
		if err != nil || there != (r.at != free) {
			t.Errorf("Get, %s: %t, %v", r.name, there, err)
		}
		listed, err := m.Stuck(t.Context(), 1)
		var wanted []store.Record
		var stats store.Stats
		switch r.at {
		case stuck:
			wanted = []store.Record{r.known()}
			stats.Unknown, stats.Stuck = 1, 1
		case waiting, due, recovering:
			stats.Unknown = 1
		case leased, lapsed:
			stats.InProgress, stats.OldestInProgress = 1, time.Hour
		}
		same(t, "Stuck, "+r.name, m, listed, wanted, r.e)
		if err != nil {
			t.Error(err)
		}
		counted, err := m.Stats(t.Context())
		same(t, "Stats, "+r.name, m, counted, stats, r.e)
		if err != nil {
			t.Error(err)
		}
	}
	person := func(e *entry) { e.Stuck = true }
	m := stored(overdue("a", idempotency.Unknown, person), overdue("b", idempotency.Unknown, person),
		overdue("c", idempotency.Unknown, person), overdue("d", idempotency.Unknown, func(*entry) {}))
	for limit, want := range []int{0, 1, 2, 3, 3} {
		if got, err := m.Stuck(t.Context(), limit); err != nil || len(got) != want {
			t.Errorf("Stuck with the limit %d: %+v, %v", limit, got, err)
		}
	}
}

// TestTransitions_Refused: a call without what it requires, or whose caller has gone, is an error and changes nothing.
func TestTransitions_Refused(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	request := idempotency.Request{Key: testKey, Fingerprint: testMine}
	noLease, noLimit := store.ClaimOptions{Token: "t"}, store.RecoverOptions{Token: "t", Lease: 1}
	claim, take := store.ClaimOptions{Token: "t", Lease: 1}, store.RecoverOptions{Limit: 1, Token: "t", Lease: 1}
	nobody := idempotency.Request{Fingerprint: testMine}
	calls := map[string]func(m *Store) error{
		"Claim":                   func(m *Store) error { return second(m.Claim(gone, request, claim)) },
		"Claim without a key":     func(m *Store) error { return second(m.Claim(t.Context(), nobody, claim)) },
		"Claim without a lease":   func(m *Store) error { return second(m.Claim(t.Context(), request, noLease)) },
		"Recover":                 func(m *Store) error { return second(m.Recover(gone, take)) },
		"Recover without a limit": func(m *Store) error { return second(m.Recover(t.Context(), noLimit)) },
		"Sweep":                   func(m *Store) error { return second(m.Sweep(gone, 1)) },
		"Stuck":                   func(m *Store) error { return second(m.Stuck(gone, 1)) },
		"Stats":                   func(m *Store) error { return second(m.Stats(gone)) },
		"Extend by nothing":       func(m *Store) error { return m.Extend(t.Context(), testHeld, 0) },
		"Extend by less":          func(m *Store) error { return m.Extend(t.Context(), testHeld, -1) },
		"Get": func(m *Store) error {
			rec, there, err := m.Get(gone, testKey)
			if there || !reflect.DeepEqual(rec, store.Record{}) {
				t.Errorf("Get: %+v, %t", rec, there)
			}
			return err
		},
	}
	for _, w := range writes() {
		calls[w.name] = func(m *Store) error { return w.call(gone, m, testHeld) }
	}
	for name, call := range calls {
		for _, r := range records() {
			m := stored(r.e)
			err := call(m)
			same(t, name, m, err != nil && !errors.Is(err, store.ErrLeaseLost), true, r.e)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestTransitions_ShareNoMemory: what the caller does later to what it gave or got is its own.
func TestTransitions_ShareNoMemory(t *testing.T) {
	t.Parallel()
	m := stored()
	input, data, body, header := []byte("i"), []byte("d"), []byte("b"), []string{"h"}
	got, err := m.Claim(t.Context(), idempotency.Request{Key: testKey, Input: input},
		store.ClaimOptions{Token: "t", Lease: time.Minute})
	check := func(want string, of func(r store.Record) []byte) {
		t.Helper()
		for range 2 {
			r, _, getErr := m.Get(t.Context(), testKey)
			if text := of(r); err != nil || getErr != nil || string(text) != want {
				t.Fatalf("%q, %v, %v; want %q", text, err, getErr, want)
			} else {
				text[0] = '!'
			}
		}
	}
	input[0], got.Record.Input[0] = '!', '!'
	check("i", func(r store.Record) []byte { return r.Input })
	err = m.Save(t.Context(), got.Lease, store.Progress{Steps: []store.Step{{Data: data}}})
	data[0] = '!'
	check("d", func(r store.Record) []byte { return r.Progress.Steps[0].Data })
	err = m.Finish(t.Context(), got.Lease, idempotency.Result{Body: body, Header: map[string][]string{"h": header}},
		idempotency.Retention{})
	body[0], header[0] = '!', "!"
	check("b", func(r store.Record) []byte { return r.Result.Body })
	check("h", func(r store.Record) []byte { return []byte(r.Result.Header["h"][0]) })
}

// TestTransitions_Table: an effect stands only in the rows of calls that can have it, and who claims again is anybody
// where it does not work at the key.
func TestTransitions_Table(t *testing.T) {
	t.Parallel()
	claims, finish := []effect{tell, grant, regrant, takeOver, note}, []effect{lost, complete, refuse, repeat}
	back := []effect{lost, reschedule, repeat}
	for what, can := range [events][]effect{
		claim: claims, claimAgain: claims, claimRerun: claims, claimOther: {tell, grant}, extend: {lost, renew},
		save: {lost, keep}, succeed: finish, fail: finish, release: {lost, forget, repeat}, markUnknown: back,
		postpone: back, postponeStuck: {lost, markStuck, repeat}, recover: {skip, assign}, sweep: {skip, erase, forget},
		foreign: {lost},
	} {
		for at, did := range table[what] {
			if !slices.Contains(can, did) {
				t.Errorf("call %d in situation %d has the effect %d", what, at, did)
			}
		}
	}
	for at, did := range table[claimAgain] {
		if working := at == int(leased) || at == int(lapsed); !working && did != table[claim][at] {
			t.Errorf("a claim again in situation %d has the effect %d, a claim %d", at, did, table[claim][at])
		}
	}
}
