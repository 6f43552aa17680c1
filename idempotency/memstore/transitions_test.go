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

// The tests of this file try every call in every situation, without the model: each takes milliseconds.

var (
	testNow         = time.Unix(1e9, 0)
	testKey         = idempotency.Key{Operation: "o", Value: "k"}
	testFingerprint = idempotency.Fingerprint{Version: 1}
	testLease       = store.Lease{Key: testKey, Fence: 5, Token: "own"}
)

const testFence = 7 // the highest of the store; the record's is lower

// record is an entry in a situation, at the first instant of it or the last of the one before.
type record struct {
	name      string
	situation situation
	e         *entry
}

// records returns entries for every situation, several where it arises in several ways.
func records() []record {
	now, later := testNow, testNow.Add(1)
	newEntry := func(state idempotency.State, change func(e *entry)) *entry {
		e := &entry{
			Record: store.Record{
				Key: testKey, State: state, Fingerprint: testFingerprint, Input: []byte("input"), Fence: 5, Attempts: 2,
				Reason:   "an earlier one",
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
	unchanged := func(*entry) {}
	const (
		stateCompleted = idempotency.Completed
		stateFailed    = idempotency.FailedReplayable
		stateExpired   = idempotency.Expired
	)
	return []record{
		{"none", free, nil},
		{"expired, tombstone overdue", free, newEntry(stateExpired, func(e *entry) { e.body, e.tomb = now, now })},
		{"completed, tombstone overdue", free, newEntry(stateCompleted, func(e *entry) { e.body, e.tomb = now, now })},
		{"leased", leased, newEntry(idempotency.InProgress, func(e *entry) { e.lease = later })},
		{"lapsed", lapsed, newEntry(idempotency.InProgress, func(e *entry) { e.lease = now })},
		{"waiting", waiting, newEntry(idempotency.Unknown, func(e *entry) { e.due = later })},
		{"due after a delay", due, newEntry(idempotency.Unknown, func(e *entry) { e.due = now })},
		{"due after a recoverer's lease", due, newEntry(idempotency.Unknown, func(e *entry) { e.lease = now })},
		{"recovering", recovering, newEntry(idempotency.Unknown, func(e *entry) { e.lease = later })},
		{"stuck", stuck, newEntry(idempotency.Unknown, func(e *entry) { e.due, e.Stuck = now, true })},
		{"completed", completed, newEntry(stateCompleted, func(e *entry) { e.body, e.tomb = later, later })},
		{"completed for ever", completed, newEntry(stateCompleted, unchanged)},
		{"refused", refused, newEntry(stateFailed, func(e *entry) { e.body, e.tomb = later, later })},
		{"completed, body overdue", bodyOverdue, newEntry(stateCompleted, func(e *entry) {
			e.body, e.tomb = now,
				later
		})},
		{"refused, body overdue", bodyOverdue, newEntry(stateFailed, func(e *entry) { e.body = now })},
		{"expired", expired, newEntry(stateExpired, func(e *entry) { e.body, e.tomb = now, later })},
		{"expired for ever", expired, newEntry(stateExpired, func(e *entry) { e.body = now })},
	}
}

// TestTransitions_Situation: each record is in its situation.
func TestTransitions_Situation(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		if at := r.e.situation(testNow); at != r.situation {
			t.Errorf("%s: situation %d, want %d", r.name, at, r.situation)
		}
	}
}

// returned is the record that a call returns.
func (r record) returned() store.Record {
	e := *r.e
	e.Age = testNow.Sub(e.claimed)
	if !e.lease.IsZero() {
		e.LeaseLeft = e.lease.Sub(testNow)
	}
	if r.situation == bodyOverdue {
		e.State, e.Progress, e.Result.Body, e.Result.Header = idempotency.Expired, store.Progress{}, nil, nil
	}
	return e.Record
}

// newStore returns a store with copies of entries under their keys.
func newStore(entries ...*entry) *Store {
	m := New(Config{Now: func() time.Time { return testNow }})
	m.fence = testFence
	for _, e := range entries {
		if e != nil {
			stored := *e
			m.keys[e.Key] = &stored
		}
	}
	return m
}

// check compares a call's answer and the record after it with the expected ones.
func check(t *testing.T, name string, m *Store, got, answer any, want *entry) {
	t.Helper()
	if !reflect.DeepEqual(got, answer) {
		t.Errorf("%s: the answer is\n%+v, want\n%+v", name, got, answer)
	}
	if e := m.keys[testKey]; !reflect.DeepEqual(e, want) {
		t.Errorf("%s: the record is\n%+v, want\n%+v", name, e, want)
	}
}

// change has the change of an entry by a call, for the situations in which it makes one; an entry without a state is
// removed.
type change map[situation]func(e *entry)

func in(all ...situation) func(apply func(e *entry)) change {
	return func(apply func(e *entry)) change {
		c := change{}
		for _, at := range all {
			c[at] = apply
		}
		return c
	}
}

func (c change) and(more change) change {
	for at, apply := range more {
		c[at] = apply
	}
	return c
}

// TestTransitions_Claim: a claim wins in the listed situations, and returns the record in all others.
func TestTransitions_Claim(t *testing.T) {
	t.Parallel()
	until := testNow.Add(time.Minute)
	request := idempotency.Request{Key: testKey, Fingerprint: testFingerprint, Input: []byte("mine")}
	other := idempotency.Request{Key: testKey, Fingerprint: idempotency.Fingerprint{Version: 2}}
	owner := store.ClaimOptions{Token: "own", Lease: time.Minute}
	another := store.ClaimOptions{Token: "another", Lease: time.Minute}
	rerun := func(o store.ClaimOptions) store.ClaimOptions { o.Rerun = true; return o }
	takeOver := func(e *entry) {
		e.State, e.Fence, e.token, e.lease, e.due, e.Stuck = idempotency.InProgress, testFence+1, "another", until,
			time.Time{}, false
	}
	takeBack := func(e *entry) { takeOver(e); e.token = "own" }
	again := in(leased, lapsed)(func(e *entry) { e.lease = until })
	none := idempotency.Stage("")
	for _, c := range []struct {
		name  string
		r     idempotency.Request
		opt   store.ClaimOptions
		stage idempotency.Stage // of the record, when set
		wins  change            // in situations other than free, where every claim wins
	}{
		{"another attempt", request, another, none, nil},
		{"the owner's attempt", request, owner, none, again},
		{"another attempt that reruns", request, rerun(another), none, in(lapsed, waiting, due, stuck)(takeOver)},
		{"the owner's attempt that reruns", request, rerun(owner), none, in(waiting, due, stuck)(takeBack).and(again)},
		{
			"another attempt at LOCAL_CREATED", request, another, idempotency.LocalCreated,
			in(lapsed, waiting, due, stuck)(takeOver),
		},
		{"another command", other, another, none, nil},
		{"another command that reruns, under the owner's token", other, rerun(owner), idempotency.LocalCreated, nil},
	} {
		for _, r := range records() {
			if r.e != nil && c.stage != none {
				r.e.Progress.Stage = c.stage
			}
			m := newStore(r.e)
			got, err := m.Claim(t.Context(), c.r, c.opt)
			if err != nil {
				t.Fatal(err)
			}
			want, won := r, true
			switch apply := c.wins[r.situation]; {
			case r.situation == free:
				want.e = &entry{
					Record: store.Record{
						Key: testKey, State: idempotency.InProgress, Fingerprint: c.r.Fingerprint, Input: c.r.Input,
						Progress: store.Progress{Stage: idempotency.Received}, Fence: testFence + 1,
						Keep: c.opt.Keep.Exact(),
					},
					token: c.opt.Token, claimed: testNow, lease: until,
				}
			case apply != nil:
				apply(want.e)
			default:
				won = false
				if r.situation == lapsed && c.r.Matches(testFingerprint) {
					want.e.State = idempotency.Unknown
				}
			}
			answer := store.ClaimResult{Won: won, Record: want.returned()}
			if won {
				answer.Lease = store.Lease{Key: testKey, Fence: want.e.Fence, Token: want.e.token}
			}
			check(t, c.name+", "+r.name, m, got, answer, want.e)
		}
	}
}

// write is a call of a holder and its change of the record.
type write struct {
	name   string
	call   func(ctx context.Context, m *Store, l store.Lease) error
	change change
	noop   []situation // where the call succeeds and changes nothing
}

func writes() []write {
	const minute = time.Minute
	zero, later := time.Time{}, testNow.Add(minute)
	progress := store.Progress{Stage: idempotency.ProviderConfirmed, Steps: []store.Step{{Name: "b"}}}
	type call = func(ctx context.Context, m *Store, l store.Lease) error
	finish := func(res idempotency.Result, retention idempotency.Retention) call {
		res.Replayed = true
		return func(ctx context.Context, m *Store, l store.Lease) error { return m.Finish(ctx, l, res, retention) }
	}
	open, finished := in(leased, lapsed, waiting, due, recovering, stuck), []situation{
		completed, refused, bodyOverdue,
		expired,
	}
	finishes := func(state idempotency.State, res idempotency.Result, body, tomb time.Time) change {
		res.At = testNow
		return open(func(e *entry) {
			e.State, e.Result, e.Input, e.Reason, e.Stuck = state, res, nil, "", false
			e.lease, e.due, e.body, e.tomb = zero, zero, body, tomb
		})
	}
	success := idempotency.Result{Code: 202, Body: []byte("x"), Header: map[string][]string{"A": {"b"}}}
	failure := idempotency.Result{Code: 402, Failure: "declined"}
	unknown := func(e *entry) { e.State, e.Reason, e.due, e.lease = idempotency.Unknown, "why", later, zero }
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
			finishes(idempotency.Completed, success, later, later.Add(minute)), finished,
		},
		{
			"Finish for ever", finish(success, idempotency.Retention{Body: -1, Tombstone: -1}),
			finishes(idempotency.Completed, success, zero, zero), finished,
		},
		{
			"Finish with a failure", finish(failure, idempotency.Retention{}),
			finishes(idempotency.FailedReplayable, failure, testNow.Add(24*time.Hour),
				testNow.Add(72*time.Hour)), finished,
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

// TestTransitions_Write: a holder's call changes the record in the listed situations, succeeds without a change in
// those under noop, and returns ErrLeaseLost in all others. Calls of others change nothing.
func TestTransitions_Write(t *testing.T) {
	t.Parallel()
	otherLeases := []store.Lease{{Key: testKey, Fence: 4, Token: "own"}, {Key: testKey, Fence: 5, Token: "former"}}
	for _, w := range writes() {
		for _, r := range records() {
			for _, l := range otherLeases {
				m := newStore(r.e)
				var want error = store.ErrLeaseLost
				if r.situation == free && slices.Contains(w.noop, free) {
					want = nil
				}
				check(t, "another's "+w.name+", "+r.name, m, w.call(t.Context(), m, l), want, r.e)
			}
			m := newStore(r.e)
			got, answer, want := w.call(t.Context(), m, testLease), error(nil), r.e
			if apply := w.change[r.situation]; apply != nil {
				if apply(want); want.State == "" {
					want = nil
				}
			} else if !slices.Contains(w.noop, r.situation) {
				answer = store.ErrLeaseLost
			}
			check(t, w.name+", "+r.name, m, got, answer, want)
		}
	}
}

// TestTransitions_Recover: a recoverer gets keys that are due, after its grace if their lease ended by itself.
func TestTransitions_Recover(t *testing.T) {
	t.Parallel()
	for _, opt := range []store.RecoverOptions{
		{}, {Operations: []string{"x", "o"}}, {Operations: []string{"x"}}, {Operations: []string{}}, {Grace: 1},
	} {
		opt.Limit, opt.Lease, opt.Token = 2, time.Minute, "recoverer"
		for _, r := range records() {
			m := newStore(r.e)
			got, err := m.Recover(t.Context(), opt)
			if err != nil {
				t.Fatal(err)
			}
			var answer []store.ClaimResult
			matches := opt.Operations == nil || slices.Contains(opt.Operations, testKey.Operation)
			if matches && (r.situation == due || r.situation == lapsed) && (r.e.lease.IsZero() || opt.Grace == 0) {
				r.e.State, r.e.Fence, r.e.token, r.e.Attempts = idempotency.Unknown, testFence+1, opt.Token, 3
				r.e.lease, r.e.due = testNow.Add(time.Minute), time.Time{}
				lease := store.Lease{Key: testKey, Fence: testFence + 1, Token: opt.Token}
				answer = []store.ClaimResult{{Won: true, Lease: lease, Record: r.returned()}}
			}
			check(t, "Recover, "+r.name, m, got, answer, r.e)
		}
	}
}

// otherEntry returns an entry under another key.
func otherEntry(key string, state idempotency.State, change func(e *entry)) *entry {
	e := &entry{claimed: testNow.Add(-time.Minute)}
	e.Key, e.State = idempotency.Key{Operation: "o", Value: key}, state
	change(e)
	return e
}

// TestTransitions_RecoverOrder: the longest overdue first, by the later end of its delay and its lease.
func TestTransitions_RecoverOrder(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) time.Time { return testNow.Add(-d) }
	for range 20 { // a map has no order, which may be the right one by chance
		m := newStore(
			otherEntry("3", idempotency.Unknown, func(e *entry) { e.lease = ago(3) }),
			otherEntry("5", idempotency.Unknown, func(e *entry) { e.due = ago(5) }),
			otherEntry("2", idempotency.Unknown, func(e *entry) { e.lease, e.due = ago(9), ago(2) }),
			otherEntry("1", idempotency.Unknown, func(e *entry) { e.lease, e.due = ago(1), ago(10) }),
			otherEntry("4", idempotency.InProgress, func(e *entry) { e.lease = ago(4) }),
		)
		for _, c := range []struct {
			grace time.Duration
			limit int
			want  []string
		}{
			{5, 1, []string{"5"}},
			{4, 1, []string{"4"}},
			{0, 2, []string{"3", "2"}},
			{0, 9, []string{"1"}},
			{0, 9, nil},
		} {
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
}

// TestTransitions_Sweep: overdue bodies and tombstones are removed, bodies first, and nothing else.
func TestTransitions_Sweep(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		m := newStore(r.e)
		got, err := m.Sweep(t.Context(), 1)
		var want store.SweepResult
		switch {
		case r.situation == bodyOverdue:
			want.Bodies = 1
			r.e.Record = withoutBody(r.e.Record)
		case r.situation == free && r.e != nil:
			want.Tombstones, r.e = 1, nil
		}
		check(t, "Sweep, "+r.name, m, got, want, r.e)
		if err != nil {
			t.Error(err)
		}
	}
	fullStore := func() *Store {
		body := func(e *entry) { e.body = testNow }
		tomb := func(e *entry) { e.body, e.tomb = testNow, testNow }
		return newStore(otherEntry("a", idempotency.Completed, body), otherEntry("b", idempotency.FailedReplayable,
			body),
			otherEntry("c", idempotency.Completed, tomb), otherEntry("d", idempotency.Expired, tomb))
	}
	for limit, want := range []store.SweepResult{
		{More: true},
		{Bodies: 1, More: true},
		{Bodies: 2, More: true},
		{Bodies: 2, Tombstones: 1, More: true},
		{Bodies: 2, Tombstones: 2},
		{Bodies: 2, Tombstones: 2},
	} {
		m := fullStore()
		if got, err := m.Sweep(t.Context(), limit); err != nil || got != want || len(m.keys) != 4-want.Tombstones {
			t.Errorf("Sweep with the limit %d: %+v, %v, %d left; want %+v", limit, got, err, len(m.keys), want)
		}
	}
}

// TestTransitions_Read: reading changes nothing.
func TestTransitions_Read(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		m := newStore(r.e)
		got, found, err := m.Get(t.Context(), testKey)
		var want store.Record
		if r.situation != free {
			want = r.returned()
		}
		check(t, "Get, "+r.name, m, got, want, r.e)
		if err != nil || found != (r.situation != free) {
			t.Errorf("Get, %s: %t, %v", r.name, found, err)
		}
		listed, err := m.Stuck(t.Context(), 1)
		var wanted []store.Record
		var stats store.Stats
		switch r.situation {
		case stuck:
			wanted = []store.Record{r.returned()}
			stats.Unknown, stats.Stuck = 1, 1
		case waiting, due, recovering:
			stats.Unknown = 1
		case leased, lapsed:
			stats.InProgress, stats.OldestInProgress = 1, time.Hour
		}
		check(t, "Stuck, "+r.name, m, listed, wanted, r.e)
		if err != nil {
			t.Error(err)
		}
		counted, err := m.Stats(t.Context())
		check(t, "Stats, "+r.name, m, counted, stats, r.e)
		if err != nil {
			t.Error(err)
		}
	}
	markStuck := func(e *entry) { e.Stuck = true }
	m := newStore(otherEntry("a", idempotency.Unknown, markStuck), otherEntry("b", idempotency.Unknown, markStuck),
		otherEntry("c", idempotency.Unknown, markStuck), otherEntry("d", idempotency.Unknown, func(*entry) {}))
	for limit, want := range []int{0, 1, 2, 3, 3} {
		if got, err := m.Stuck(t.Context(), limit); err != nil || len(got) != want {
			t.Errorf("Stuck with the limit %d: %+v, %v", limit, got, err)
		}
	}
}

// TestTransitions_Refused: a call without a required argument, or after the end of its context, fails and changes
// nothing.
func TestTransitions_Refused(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	request := idempotency.Request{Key: testKey, Fingerprint: testFingerprint}
	noLease, noLimit := store.ClaimOptions{Token: "t"}, store.RecoverOptions{Token: "t", Lease: 1}
	claim, recover := store.ClaimOptions{Token: "t", Lease: 1}, store.RecoverOptions{Limit: 1, Token: "t", Lease: 1}
	noKey := idempotency.Request{Fingerprint: testFingerprint}
	calls := map[string]func(m *Store) error{
		"Claim":                   func(m *Store) error { return second(m.Claim(canceled, request, claim)) },
		"Claim without a key":     func(m *Store) error { return second(m.Claim(t.Context(), noKey, claim)) },
		"Claim without a lease":   func(m *Store) error { return second(m.Claim(t.Context(), request, noLease)) },
		"Recover":                 func(m *Store) error { return second(m.Recover(canceled, recover)) },
		"Recover without a limit": func(m *Store) error { return second(m.Recover(t.Context(), noLimit)) },
		"Sweep":                   func(m *Store) error { return second(m.Sweep(canceled, 1)) },
		"Stuck":                   func(m *Store) error { return second(m.Stuck(canceled, 1)) },
		"Stats":                   func(m *Store) error { return second(m.Stats(canceled)) },
		"Extend by zero":          func(m *Store) error { return m.Extend(t.Context(), testLease, 0) },
		"Extend by a negative":    func(m *Store) error { return m.Extend(t.Context(), testLease, -1) },
		"Get": func(m *Store) error {
			rec, found, err := m.Get(canceled, testKey)
			if found || !reflect.DeepEqual(rec, store.Record{}) {
				t.Errorf("Get: %+v, %t", rec, found)
			}
			return err
		},
	}
	for _, w := range writes() {
		calls[w.name] = func(m *Store) error { return w.call(canceled, m, testLease) }
	}
	for name, call := range calls {
		for _, r := range records() {
			m := newStore(r.e)
			err := call(m)
			check(t, name, m, err != nil && !errors.Is(err, store.ErrLeaseLost), true, r.e)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestTransitions_ShareNoMemory: a caller's later changes of arguments and results do not reach the store.
func TestTransitions_ShareNoMemory(t *testing.T) {
	t.Parallel()
	m := newStore()
	input, data, body, header := []byte("i"), []byte("d"), []byte("b"), []string{"h"}
	got, err := m.Claim(t.Context(), idempotency.Request{Key: testKey, Input: input},
		store.ClaimOptions{Token: "t", Lease: time.Minute})
	checkBytes := func(want string, field func(r store.Record) []byte) {
		t.Helper()
		for range 2 {
			r, _, getErr := m.Get(t.Context(), testKey)
			if text := field(r); err != nil || getErr != nil || string(text) != want {
				t.Fatalf("%q, %v, %v; want %q", text, err, getErr, want)
			} else {
				text[0] = '!'
			}
		}
	}
	input[0], got.Record.Input[0] = '!', '!'
	checkBytes("i", func(r store.Record) []byte { return r.Input })
	err = m.Save(t.Context(), got.Lease, store.Progress{Steps: []store.Step{{Data: data}}})
	data[0] = '!'
	checkBytes("d", func(r store.Record) []byte { return r.Progress.Steps[0].Data })
	err = m.Finish(t.Context(), got.Lease, idempotency.Result{Body: body, Header: map[string][]string{"h": header}},
		idempotency.Retention{})
	body[0], header[0] = '!', "!"
	checkBytes("b", func(r store.Record) []byte { return r.Result.Body })
	checkBytes("h", func(r store.Record) []byte { return []byte(r.Result.Header["h"][0]) })
}

// TestTransitions_Table: each call has only actions that it can have, and claimAgain differs from claim only while the
// owner has the key.
func TestTransitions_Table(t *testing.T) {
	t.Parallel()
	claims, finish := []action{deny, grant, regrant, takeOver, expire}, []action{lost, complete, refuse, noop}
	unknowns := []action{lost, reschedule, noop}
	for kind, allowed := range [calls][]action{
		claim: claims, claimAgain: claims, claimRerun: claims, claimMismatch: {deny, grant}, extend: {lost, renew},
		save: {lost, update}, succeed: finish, fail: finish, release: {lost, remove, noop}, markUnknown: unknowns,
		postpone: unknowns, postponeStuck: {lost, markStuck, noop}, recover: {skip, assign}, sweep: {
			skip, dropBody,
			remove,
		},
		lateWrite: {lost},
	} {
		for at, act := range table[kind] {
			if !slices.Contains(allowed, act) {
				t.Errorf("call %d in situation %d has the action %d", kind, at, act)
			}
		}
	}
	for at, act := range table[claimAgain] {
		if owned := at == int(leased) || at == int(lapsed); !owned && act != table[claim][at] {
			t.Errorf("claimAgain in situation %d has the action %d, claim %d", at, act, table[claim][at])
		}
	}
}
