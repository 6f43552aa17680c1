package inbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
)

func TestOperatorSees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "b", "")
	e[2].Tenant = "t"
	bad := map[uuid.UUID]error{e[0].ID: inbox.Terminal("x", errBad), e[2].ID: inbox.Terminal("y", errBad), e[3].ID: inbox.Terminal("y", errBad)}
	handle(t, w.inbox(inbox.Config{}).Each(failing(bad)), e)
	other := newInbox(t, w.Pool, "other", small(inbox.Config{}))
	handle(t, other.Each(failing(bad)), e[:1])
	o, all := w.operator(), func() *inbox.Operator {
		o, err := inbox.NewOperator(w.Pool, w.Schema, "", "ada")
		if err != nil {
			t.Fatal(err)
		}
		return o
	}()
	tenant, none := "t", ""
	for name, c := range map[string]struct {
		o    *inbox.Operator
		f    inbox.ParkedFilter
		want []uuid.UUID
	}{
		"all of a consumer": {o, inbox.ParkedFilter{}, ids(e)},
		"every consumer":    {all, inbox.ParkedFilter{}, append(ids(e), e[0].ID)},
		"key":               {o, inbox.ParkedFilter{Key: "a"}, ids(e[:2])},
		"tenant":            {o, inbox.ParkedFilter{Tenant: &tenant}, ids(e[2:3])},
		"no tenant":         {o, inbox.ParkedFilter{Tenant: &none, Code: "y"}, ids(e[3:])},
		"topic":             {o, inbox.ParkedFilter{Topic: "refunds"}, nil},
		"code":              {o, inbox.ParkedFilter{Code: "x"}, ids(e[:1])},
		"kind":              {o, inbox.ParkedFilter{Kind: "behind"}, ids(e[1:2])},
		"message":           {o, inbox.ParkedFilter{MessageID: e[2].ID}, ids(e[2:3])},
		"age":               {o, inbox.ParkedFilter{OlderThan: time.Hour}, nil},
		"a page":            {o, inbox.ParkedFilter{Limit: 2}, ids(e[:2])},
	} {
		list, err := c.o.Parked(t.Context(), c.f)
		if err != nil {
			t.Fatal(err)
		}
		var got []uuid.UUID
		for _, p := range list {
			got = append(got, p.MessageID)
		}
		same(t, name, got, c.want)
	}
	keys, err := o.BlockedKeys(t.Context(), inbox.BlockedFilter{})
	if err != nil || len(keys) != 2 || keys[0].Key != "a" || keys[0].Waiting != 2 || *keys[0].Head != e[0].ID || keys[1].Tenant != "t" || keys[1].Code != "y" {
		t.Errorf("%+v, %v", keys, err)
	}
	consumers, err := all.Consumers(t.Context())
	if err != nil || len(consumers) != 2 || consumers[0].Consumer != "ledger" || consumers[0].Window != oneDay || len(consumers[0].Partitions) != 1 {
		t.Fatalf("%+v, %v", consumers, err)
	}
	if p := consumers[0].Partitions[0]; p.Topic != "payments" || p.Partition != 3 || p.From != 4 || p.To != 4 || p.HaltedAt != nil {
		t.Errorf("%+v", p)
	}
	if !consumers[0].Floor.Equal(w.noon(0).Add(-12 * time.Hour)) {
		t.Errorf("floor %v", consumers[0].Floor)
	}
}

// TestOperatorRefuses: without a name, a reason or a consumer nothing is done.
func TestOperatorRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := inbox.NewOperator(w.Pool, w.Schema, "ledger", " "); err == nil {
		t.Error("an operator without a name")
	}
	all, err := inbox.NewOperator(w.Pool, w.Schema, "", "ada")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.ReleaseKey(t.Context(), "", "payments", "a", "x"); err == nil || errors.Is(err, inbox.ErrNotParked) {
		t.Error("a key of no consumer:", err)
	}
	if err := all.Resume(t.Context(), "payments", 3, "x"); err == nil || errors.Is(err, inbox.ErrNotHalted) {
		t.Error("a partition of no consumer:", err)
	}
	o := w.operator()
	if err := o.Resume(t.Context(), "payments", 3, "x"); !errors.Is(err, inbox.ErrNotHalted) {
		t.Error(err)
	}
	if _, err := o.ReleaseKey(t.Context(), "", "payments", "a", "x"); !errors.Is(err, inbox.ErrNotParked) {
		t.Error(err)
	}
	if _, err := o.DiscardEvent(t.Context(), 7, "x"); !errors.Is(err, inbox.ErrNotParked) {
		t.Error(err)
	}
	if _, err := o.DiscardEvent(t.Context(), 7, ""); err == nil || errors.Is(err, inbox.ErrNotParked) {
		t.Error("without a reason:", err)
	}
	if _, err := o.ParkedEvent(t.Context(), 7); !errors.Is(err, inbox.ErrNotParked) {
		t.Error(err)
	}
}
