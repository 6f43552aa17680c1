package inbox_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// TestFind: Find finds events by message id, by key, and by the id of a parked event.
func TestFind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := keyed("a", "b")
	s := &switchable{bad: map[uuid.UUID]error{e[0].ID: outcome.Terminal("NO_ACCOUNT", errBad)}}
	same(t, "outcomes", handle(t, w.inbox(quick(inbox.Config{})).Each(s.effect), e), []inbox.Outcome{
		inbox.Parked, inbox.Applied,
	})
	o := w.operator()
	find := func(text string) operator.Found {
		t.Helper()
		f, err := o.Find(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := find(e[1].ID.String()); len(f.Events) != 1 || f.Events[0].Where != "decided" || f.Events[0].Consumer !=
		"ledger" || f.Events[0].At.IsZero() || len(f.Unsearched) != 0 {
		t.Errorf("%+v", f)
	}
	id := pgtest.One[int64](t, w.DB, `select id from inbox_parked`)
	for _, text := range []string{"a", e[0].ID.String(), fmt.Sprint(id)} {
		if f := find(text); len(f.Events) != 1 || f.Events[0].Where != "failed" || f.Events[0].Code != "NO_ACCOUNT" ||
			f.Events[0].MessageID != e[0].ID || f.Events[0].ID != id || f.Events[0].Key != "a" {
			t.Errorf("%s: %+v", text, f)
		}
	}
	for _, none := range []string{"", "b", "nobody's", "\x00", uuid.NewString()} {
		if f := find(none); len(f.Events) != 0 {
			t.Errorf("%q: %+v", none, f)
		}
	}
	w.DB.Exec(t, `update inbox_consumer set dedup = 'watermark'`)
	if f := find(e[1].ID.String()); len(f.Unsearched) != 1 {
		t.Errorf("%+v", f)
	}
}
