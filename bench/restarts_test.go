package main

import (
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// TestCompare: an event whose first occurrence is after a later event of its key is an inversion; a repeat is not.
func TestCompare(t *testing.T) {
	t.Parallel()
	var sent []event.Event
	var log []loggedRecord
	for i := range 6 {
		id := uuid.New()
		sent = append(sent, event.Event{ID: id})
		log = append(log, loggedRecord{id, "k", i})
	}
	for name, one := range map[string]struct {
		log  []loggedRecord
		want deviations
	}{
		"whole": {log, deviations{}},
		"repeats": {
			[]loggedRecord{log[0], log[1], log[2], log[1], log[2], log[3], log[4], log[5], log[0]},
			deviations{twice: 3},
		},
		"missing":        {log[:4], deviations{missing: 2}},
		"inverted":       {[]loggedRecord{log[0], log[2], log[1], log[3], log[4], log[5]}, deviations{inverted: 1}},
		"another's keys": {append([]loggedRecord{{uuid.New(), "other", 9}}, log...), deviations{}},
	} {
		if got := compare(sent, one.log); got != one.want {
			t.Errorf("%s: %+v, want %+v", name, got, one.want)
		}
	}
}
