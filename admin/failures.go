package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Failure is one item for an operator to handle: a parked key with its list, or an event that is parked alone. Keys and
// events during their release are not failures.
type Failure struct {
	Consumer string // only of an inbox
	Tenant   string // Tenant and Key: see Parked
	Topic    string
	Key      string
	Alone    bool
	ID       int64  // of the event, or of the first of the key's list; 0 for an empty list
	Type     string // of that event
	Kind     string // of that event, as in Parked
	Code     string // the code of the error that parked the key or the event
	Error    string
	Since    time.Time
	Waiting  int64 // number of events in the key's list, if FailureFilter.Count
}

// FailureFilter selects failures. The zero value selects the first 100 of all.
type FailureFilter struct {
	Tenant       *string   // nil: any
	Topic        string    // empty: any
	Type, Code   *string   // nil: any
	Kinds        []string  // Failure.Kind; empty: any
	Since, Until time.Time // bounds of the time of parking, inclusive; zero: no bound
	Limit        int       // default 100
	Count        bool      // set Failure.Waiting
}

// FailureGroup counts failures with the same consumer, topic, type, kind and code.
type FailureGroup struct {
	Consumer string    `json:"consumer,omitempty"` // only of an inbox
	Topic    string    `json:"topic"`
	Type     string    `json:"type"`
	Kind     string    `json:"kind"`
	Code     string    `json:"code"`
	From     time.Time `json:"from,omitzero"` // begin of the hour or day; zero: of any time
	Keys     int64     `json:"keys"`
	Alone    int64     `json:"alone"` // events that are parked alone
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Error    string    `json:"error"`    // of the last
	FirstID  int64     `json:"first_id"` // the first event; 0: none is left of its key
}

// Failures returns the number of failures in the group.
func (g FailureGroup) Failures() int64 { return g.Keys + g.Alone }

// MostGrouped bounds the failures that the command and the pages group; those parked longest come first.
const MostGrouped = 10_000

// GroupFailures groups failures, in order of their time, by consumer, topic, type, kind and code, and by the hour or
// day (UTC) when every is not 0. The largest group comes first.
func GroupFailures(list []Failure, every time.Duration) []FailureGroup {
	type likeness struct {
		consumer, topic, typ, kind, code string
		from                             time.Time
	}
	at := map[likeness]int{}
	var groups []FailureGroup
	for _, f := range list {
		like := likeness{f.Consumer, f.Topic, f.Type, f.Kind, f.Code, time.Time{}}
		if every > 0 {
			like.from = f.Since.UTC().Truncate(every)
		}
		i, known := at[like]
		if !known {
			i = len(groups)
			at[like] = i
			groups = append(groups, FailureGroup{
				Consumer: f.Consumer, Topic: f.Topic, Type: f.Type, Kind: f.Kind, Code: f.Code, From: like.from,
				First: f.Since, FirstID: f.ID,
			})
		}
		g := &groups[i]
		if g.Last, g.Error = f.Since, f.Error; f.Alone {
			g.Alone++
		} else {
			g.Keys++
		}
	}
	slices.SortStableFunc(groups, func(a, b FailureGroup) int { return cmp.Compare(b.Failures(), a.Failures()) })
	return groups
}

// GroupResult is the result of a change of several failures.
type GroupResult struct {
	Keys           int64 `json:"keys"`
	Alone          int64 `json:"alone"`
	Events         int64 `json:"events"`     // released or discarded
	Overtaken      int64 `json:"overtaken"`  // failures that another operator changed meanwhile
	MaybePublished int64 `json:"may_appear"` // as in DiscardResult
}

// Counted returns the result that a release of the failures would have. It needs FailureFilter.Count.
func Counted(list []Failure) (r GroupResult) {
	for _, f := range list {
		r.add(f, f.Waiting)
	}
	return r
}

func (r *GroupResult) add(f Failure, events int64) {
	if f.Alone {
		r.Alone, r.Events = r.Alone+1, r.Events+1
		return
	}
	r.Keys, r.Events = r.Keys+1, r.Events+events
}

// ReleaseAll releases keys and lone events one after the other, each with its own row in the audit. With an error it
// also returns the result so far.
func ReleaseAll(ctx context.Context, o ParkedOperator, list []Failure, reason string) (r GroupResult, err error) {
	return each(list, func(f Failure, r *GroupResult) error {
		if f.Alone {
			if err := o.ReleaseEvent(ctx, f.ID, reason); err != nil {
				return err
			}
			r.add(f, 1)
			return nil
		}
		n, err := o.ReleaseKey(ctx, f.Tenant, f.Topic, f.Key, Seen{Head: f.ID}, reason)
		if err == nil {
			r.add(f, n)
		}
		return err
	})
}

// DiscardAll discards the first event of each key, and lone events, one after the other, each with its own row in the
// audit. Later events of a key stay parked until the key is released. With an error it also returns the result so far.
func DiscardAll(ctx context.Context, o ParkedOperator, list []Failure, reason string) (r GroupResult, err error) {
	return each(list, func(f Failure, r *GroupResult) error {
		if f.ID == 0 {
			return nil // the list is empty
		}
		d, err := o.DiscardEvent(ctx, f.ID, reason)
		if err == nil {
			r.add(f, 1)
			r.MaybePublished += d.MaybePublished
		}
		return err
	})
}

func each(list []Failure, do func(f Failure, r *GroupResult) error) (r GroupResult, err error) {
	for _, f := range list {
		switch err := do(f, &r); {
		case errors.Is(err, ErrNotParked), errors.Is(err, ErrReleasing), errors.Is(err, ErrAnotherList):
			r.Overtaken++
		case err != nil:
			return r, fmt.Errorf("event %d: %w", f.ID, err)
		}
	}
	return r, nil
}
