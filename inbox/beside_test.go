package inbox_test

import (
	"testing"

	"github.com/effectonce/effectonce/inbox"
)

// TestBeside: a consumer that has read nothing of a topic learns which other one of its program does.
func TestBeside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	beside := func(name, program, topic string) string {
		in := newInbox(t, w.Pool, name, small(inbox.Config{Program: program}))
		if err := in.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		p, err := in.Progress(t.Context(), topic, 3)
		if err != nil {
			t.Fatal(err)
		}
		return p.Beside
	}
	for _, first := range []string{"ledger", "email"} {
		if got := beside(first, "acme", "payments"); got != "" {
			t.Errorf("%s, before any: beside %q", first, got)
		}
	}
	w.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('ledger', 'payments', 0, 7, 7), ('known', 'payments', 1, 7, 7)`)
	w.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, began_offset, began_at)
		values ('ledger', 'orders', 0, 7, 7, 0, clock_timestamp())`)
	for _, c := range []struct{ name, program, topic, want string }{
		{"email", "acme", "orders", ""}, // there since before ledger began it, as on the first day of both
		{"ledgre", "acme", "orders", "ledger"},
		{"ledgre", "acme", "payments", "ledger"},
		{"ledger", "acme", "payments", ""},
		{"known", "acme", "payments", ""},
		{"other", "acme", "refunds", ""},
		{"mail", "mails", "payments", ""},
	} {
		if got := beside(c.name, c.program, c.topic); got != c.want {
			t.Errorf("%+v: beside %q", c, got)
		}
	}
	w.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, began_offset)
		values ('ledger', 'parcels', 0, 7, 7, 7)`)
	if got := beside("other", "acme", "parcels"); got != "" {
		t.Errorf("beside one that has decided nothing: %q", got)
	}
	w.Exec(t, "update inbox_progress set to_offset = 9 where topic = 'parcels'")
	if got := beside("other", "acme", "parcels"); got != "ledger" {
		t.Errorf("beside one whose first events run: %q", got)
	}
	w.Exec(t, `update inbox_consumer set retired_at = now() where consumer_name = 'ledger'`)
	if got := beside("third", "acme", "payments"); got != "known" {
		t.Errorf("beside a retired one: %q", got)
	}
}
