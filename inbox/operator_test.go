package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/outcome"
)

func init() {
	inbox.DiscardEvent = func(ctx context.Context, db *pgxpool.Pool, schema string, id int64) error {
		o, err := operator.New(db, schema, "ledger", "ada")
		if err == nil {
			_, err = o.DiscardEvent(ctx, id, "a test")
		}
		return err
	}
}

func TestOperatorSees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "a", "b", "")
	e[2].Tenant = "t"
	bad := map[uuid.UUID]error{
		e[0].ID: outcome.Terminal("x", errBad), e[2].ID: outcome.Terminal("y", errBad),
		e[3].ID: outcome.Terminal("y", errBad),
	}
	handle(t, w.inbox(inbox.Config{}).Each(failing(bad)), e)
	other := newInbox(t, w.Pool, "other", small(inbox.Config{}))
	handle(t, other.Each(failing(bad)), e[:1])
	o, all := w.operator(), func() *operator.Operator {
		o, err := operator.New(w.Pool, w.Schema, "", "ada")
		if err != nil {
			t.Fatal(err)
		}
		return o
	}()
	tenant, none := "t", ""
	for name, c := range map[string]struct {
		o    *operator.Operator
		f    admin.ParkedFilter
		want []uuid.UUID
	}{
		"all of a consumer": {o, admin.ParkedFilter{}, ids(e)},
		"every consumer":    {all, admin.ParkedFilter{}, append(ids(e), e[0].ID)},
		"key":               {o, admin.ParkedFilter{Key: "a"}, ids(e[:2])},
		"tenant":            {o, admin.ParkedFilter{Tenant: &tenant}, ids(e[2:3])},
		"no tenant":         {o, admin.ParkedFilter{Tenant: &none, Code: "y"}, ids(e[3:])},
		"topic":             {o, admin.ParkedFilter{Topic: "refunds"}, nil},
		"code":              {o, admin.ParkedFilter{Code: "x"}, ids(e[:1])},
		"kind":              {o, admin.ParkedFilter{Kind: "behind"}, ids(e[1:2])},
		"message":           {o, admin.ParkedFilter{MessageID: e[2].ID}, ids(e[2:3])},
		"age":               {o, admin.ParkedFilter{OlderThan: time.Hour}, nil},
		"a page":            {o, admin.ParkedFilter{Limit: 2}, ids(e[:2])},
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
	keys, err := o.BlockedKeys(t.Context(), admin.BlockedFilter{})
	if err != nil || len(keys) != 2 || keys[0].Key != "a" || keys[0].Waiting != 2 || *keys[0].Head != e[0].ID ||
		keys[1].Tenant != "t" || keys[1].Code != "y" {
		t.Errorf("%+v, %v", keys, err)
	}
	consumers, err := all.Consumers(t.Context())
	if err != nil || len(consumers) != 2 || consumers[0].Consumer != "ledger" || consumers[0].Window != oneDay ||
		len(consumers[0].Partitions) != 1 {
		t.Fatalf("%+v, %v", consumers, err)
	}
	if p := consumers[0].Partitions[0]; p.Topic != "payments" || p.Partition != 3 || p.From != 4 || p.To != 4 ||
		p.HaltedAt != nil {
		t.Errorf("%+v", p)
	}
	if !consumers[0].Floor.Equal(w.noon(0).Add(-12 * time.Hour)) {
		t.Errorf("floor %v", consumers[0].Floor)
	}
}

// TestOperatorRefuses: a command without an operator's name, a reason or an existing consumer changes nothing.
func TestOperatorRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := operator.New(w.Pool, w.Schema, "ledger", " "); err == nil {
		t.Error("an operator without a name")
	}
	all, err := operator.New(w.Pool, w.Schema, "", "ada")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.ReleaseKey(t.Context(), "", "payments", "a", admin.Seen{}, "x"); err == nil ||
		errors.Is(err, admin.ErrNotParked) {
		t.Error("a key of no consumer:", err)
	}
	if err := all.Resume(t.Context(), "payments", 3, "x"); err == nil || errors.Is(err, operator.ErrNotHalted) {
		t.Error("a partition of no consumer:", err)
	}
	o := w.operator()
	if err := o.Resume(t.Context(), "payments", 3, "x"); !errors.Is(err, operator.ErrNotHalted) {
		t.Error(err)
	}
	if _, err := o.ReleaseKey(t.Context(), "", "payments", "a", admin.Seen{},
		"x"); !errors.Is(err, admin.ErrNotParked) {
		t.Error(err)
	}
	if _, err := o.DiscardEvent(t.Context(), 7, "x"); !errors.Is(err, admin.ErrNotParked) {
		t.Error(err)
	}
	if _, err := o.DiscardEvent(t.Context(), 7, ""); err == nil || errors.Is(err, admin.ErrNotParked) {
		t.Error("without a reason:", err)
	}
	if _, err := o.ParkedEvent(t.Context(), 7); !errors.Is(err, admin.ErrNotParked) {
		t.Error(err)
	}
}

// TestDiscardMakesMissingDays: a discard makes the days of its ids if they are missing.
func TestDiscardMakesMissingDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := func(context.Context, pgx.Tx, event.Event) error { return outcome.Terminal("x", errBad) }
	in := w.inbox(inbox.Config{})
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "update inbox_consumer set floor = current_date - 9")
	h, events := in.Each(bad), keyed("a", "a")
	for i := range events {
		events[i].ID = idAt(w.noon(2*i - 1))
	}
	same(t, "outcomes", handle(t, h, events), repeat(inbox.Parked, 2))
	for _, days := range []int{-1, 1} { // not today's, whose ids would be gone
		w.Exec(t, "drop table "+w.table(days))
	}
	if d, err := w.operator().DiscardKey(t.Context(), "", "payments", "a", admin.Seen{},
		"never"); err != nil || d.Events != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	same(t, "later", handle(t, h, events), repeat(inbox.Duplicate, 2))
}
