package store_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

var (
	key    = idempotency.Key{Operation: "o", Value: "k"}
	mine   = idempotency.Fingerprint{Version: 2}
	errOff = errors.New("the store is away")
)

// TestRecord_Answer: every state, and another command's request, which gets nothing of the result.
func TestRecord_Answer(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	rec := store.Record{
		Fingerprint: mine, Age: 4, Reason: "why", Stuck: true,
		Progress: store.Progress{Stage: idempotency.ProviderConfirmed},
		Result:   idempotency.Result{Code: 402, Failure: "f", Resource: "r", At: at, Body: []byte("b")},
	}
	replayed := rec.Result
	replayed.Replayed = true
	expired := &idempotency.ExpiredError{Code: 402, Failure: "f", Resource: "r", At: at}
	for _, c := range []struct {
		state idempotency.State
		left  time.Duration
		want  idempotency.Result
		err   error
	}{
		{idempotency.Completed, 3, replayed, nil},
		{idempotency.FailedReplayable, 3, replayed, nil},
		{idempotency.Expired, 3, idempotency.Result{}, expired},
		{idempotency.InProgress, 3, idempotency.Result{}, &idempotency.InProgressError{RetryAfter: 3, Age: 4}},
		{idempotency.InProgress, -3, idempotency.Result{}, &idempotency.InProgressError{Age: 4}},
		{
			idempotency.Unknown, 3,
			idempotency.Result{},
			&idempotency.UnknownError{Stage: idempotency.ProviderConfirmed, Stuck: true, Reason: "why"},
		},
	} {
		rec.State, rec.LeaseLeft = c.state, c.left
		got, err := rec.Answer(idempotency.Request{Fingerprint: mine})
		if !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(err, c.err) {
			t.Errorf("%s: %+v, %#v; want %+v, %#v", c.state, got, err, c.want, c.err)
		}
		got, err = rec.Answer(idempotency.Request{})
		other := &idempotency.MismatchError{State: c.state, Resource: "r", Version: 2}
		if !reflect.DeepEqual(got, idempotency.Result{}) || !reflect.DeepEqual(err, other) {
			t.Errorf("%s, another command: %+v, %#v", c.state, got, err)
		}
	}
}

// TestCheck: what is required is asked for, by the name of what is missing.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit int
		token string
		lease time.Duration
		want  string // in the error; empty for none
	}{
		{1, "t", 1, ""},
		{0, "t", 1, "limit"},
		{-1, "t", 1, "limit"},
		{1, "", 1, "token"},
		{1, "t", 0, "lease"},
		{1, "t", -1, "lease"},
	} {
		err := store.RecoverOptions{Limit: c.limit, Token: c.token, Lease: c.lease}.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// scripted is a store whose answers are given. It notes how a claimed key was ended.
type scripted struct {
	store.Store
	get     map[idempotency.Key]store.Record
	away    idempotency.Key // Get of it fails
	won     bool
	claimed store.Record
	echo    bool // the claim made the record: its input is the request's
	err     error

	request idempotency.Request
	options store.ClaimOptions
	ended   string
}

func (s *scripted) Get(_ context.Context, k idempotency.Key) (store.Record, bool, error) {
	rec, found := s.get[k]
	if k != s.away {
		return rec, found, nil
	}
	return rec, found, errOff
}

func (s *scripted) Claim(_ context.Context, r idempotency.Request, o store.ClaimOptions) (store.ClaimResult, error) {
	s.request, s.options = r, o
	if s.echo {
		s.claimed.Input = r.Input
	}
	lease := store.Lease{Key: r.Key, Fence: 3, Token: o.Token}
	return store.ClaimResult{Won: s.won, Record: s.claimed, Lease: lease}, s.err
}

func (s *scripted) end(how string, l store.Lease) error {
	if s.ended = how; l.Fence != 3 || l.Token != s.options.Token || l.Key != key {
		s.ended += " under another lease"
	}
	return errOff
}

func (s *scripted) Release(_ context.Context, l store.Lease) error { return s.end("released", l) }

func (s *scripted) MarkUnknown(_ context.Context, l store.Lease, reason string, after time.Duration) error {
	return s.end("unknown: "+reason+", "+after.String(), l)
}

// TestClaimStuck: a person gets an operation that is still stuck; a key of another request is released or left to
// recovery.
func TestClaimStuck(t *testing.T) {
	t.Parallel()
	person := map[idempotency.Key]store.Record{key: {Fingerprint: mine, Stuck: true}}
	for _, c := range []struct {
		name  string
		s     scripted
		ended string
		want  []error // all are matched; none: it is the person's
		not   error
	}{
		{"the store is away", scripted{get: person, away: key}, "", []error{errOff}, store.ErrNotStuck},
		{"nothing is there", scripted{}, "", []error{store.ErrNotStuck}, errOff},
		{
			"recovery is at it",
			scripted{get: map[idempotency.Key]store.Record{key: {}}, won: true},
			"",
			[]error{store.ErrNotStuck},
			errOff,
		},
		{"the claim fails", scripted{get: person, err: errOff, won: true}, "", []error{errOff}, store.ErrNotStuck},
		{"another person was faster", scripted{get: person}, "", []error{store.ErrNotStuck}, errOff},
		{
			"freed meanwhile",
			scripted{get: person, won: true, echo: true},
			"released",
			[]error{store.ErrNotStuck, errOff},
			nil,
		},
		{
			"freed and used meanwhile",
			scripted{get: person, won: true, claimed: store.Record{Reason: "gone"}},
			"unknown: gone, 0s",
			[]error{store.ErrNotStuck, errOff},
			nil,
		},
		{"taken", scripted{get: person, won: true, claimed: store.Record{Attempts: 1}}, "", nil, store.ErrNotStuck},
	} {
		got, err := store.ClaimStuck(t.Context(), &c.s, key, time.Minute)
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", c.name, err, want)
			}
		}
		taken := len(c.want) == 0
		if got.Won != taken || (err == nil) != taken || c.not != nil && errors.Is(err, c.not) || c.s.ended != c.ended {
			t.Errorf("%s: %+v, %v, %q", c.name, got, err, c.s.ended)
		}
		if !taken && !reflect.DeepEqual(got, store.ClaimResult{}) {
			t.Errorf("%s: %+v beside an error", c.name, got)
		}
		r, o := c.s.request, c.s.options
		if taken && (r.Key != key || r.Fingerprint != mine || o.Token == "" || o.Lease != time.Minute || !o.Rerun) {
			t.Errorf("%s: it claims %+v, %+v", c.name, r, o)
		}
	}
}

// TestStuckAmong: the records of stuck keys, up to the limit.
func TestStuckAmong(t *testing.T) {
	t.Parallel()
	s := scripted{get: map[idempotency.Key]store.Record{}}
	keys := []idempotency.Key{{Value: "a"}, {Value: "taken"}, {Value: "gone"}, {Value: "b"}, {Value: "c"}}
	for _, k := range keys {
		if k.Value != "gone" {
			s.get[k] = store.Record{Key: k, Stuck: k.Value != "taken"}
		}
	}
	for limit, want := range []string{"", "a", "ab", "abc", "abc"} {
		all, err := store.StuckAmong(t.Context(), &s, keys, limit)
		got := ""
		for _, rec := range all {
			got += rec.Key.Value
		}
		if err != nil || got != want {
			t.Errorf("at most %d: %q, %v; want %q", limit, got, err, want)
		}
	}
	s.away = keys[3]
	if all, err := store.StuckAmong(t.Context(), &s, keys, 3); !errors.Is(err, errOff) || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
