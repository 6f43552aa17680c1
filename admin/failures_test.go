package admin

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestGroupFailures(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 10, 59, 0, 0, time.UTC)
	list := []Failure{
		{Topic: "t", Type: "A", Kind: "refused", Code: "X", ID: 7, Error: "first", Since: at},
		{Topic: "t", Type: "B", Kind: "refused", Code: "X", Since: at},
		{Topic: "t", Type: "A", Kind: "refused", Code: "X", Alone: true, Error: "last", Since: at.Add(2 * time.Minute)},
	}
	group := FailureGroup{
		Topic: "t", Type: "A", Kind: "refused", Code: "X", Keys: 1, Alone: 1, First: at, Last: at.Add(2 * time.Minute),
		Error: "last", FirstID: 7,
	}
	if got := GroupFailures(list, 0); len(got) != 2 || got[0] != group {
		t.Errorf("%+v", got)
	}
	got := GroupFailures(list, time.Hour)
	if len(got) != 3 || got[0].From != at.Truncate(time.Hour) || got[2].From != at.Truncate(time.Hour).Add(time.Hour) {
		t.Errorf("by hour: %+v", got)
	}
}

// refuses is an operator of whom one event is gone, and one change fails.
type refuses struct {
	ParkedOperator
	did []int64
}

func (o *refuses) DiscardEvent(_ context.Context, id int64, _ string) (DiscardResult, error) {
	switch id {
	case 2:
		return DiscardResult{}, ErrNotParked
	case 4:
		return DiscardResult{}, errors.New("the connection broke")
	}
	o.did = append(o.did, id)
	return DiscardResult{Events: 1, MaybePublished: 1}, nil
}

// TestDiscardAll: what others have changed is passed over, what fails ends it, and what was done is told then, too.
func TestDiscardAll(t *testing.T) {
	t.Parallel()
	var o refuses
	list := []Failure{{ID: 1}, {ID: 2, Alone: true}, {ID: 0}, {ID: 3, Alone: true}, {ID: 4}, {ID: 5}}
	r, err := DiscardAll(t.Context(), &o, list, "why")
	want := GroupResult{Keys: 1, Alone: 1, Events: 2, Overtaken: 1, MaybePublished: 2}
	if err == nil || r != want || !reflect.DeepEqual(o.did, []int64{1, 3}) {
		t.Errorf("%+v, %v: %v", r, err, o.did)
	}
}
