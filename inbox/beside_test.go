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
	if got := beside("ledger", "acme", "payments"); got != "" {
		t.Errorf("the first one: %q", got)
	}
	w.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset)
		values ('ledger', 'payments', 0, 7, 7), ('known', 'payments', 1, 7, 7)`)
	for _, c := range []struct{ name, program, topic, want string }{
		{"ledgre", "acme", "payments", "ledger"},
		{"ledger", "acme", "payments", ""},
		{"known", "acme", "payments", ""},
		{"other", "acme", "refunds", ""},
		{"email", "mails", "payments", ""},
	} {
		if got := beside(c.name, c.program, c.topic); got != c.want {
			t.Errorf("%+v: beside %q", c, got)
		}
	}
	w.Exec(t, `update inbox_consumer set retired_at = now() where consumer_name = 'ledger'`)
	if got := beside("third", "acme", "payments"); got != "known" {
		t.Errorf("beside a retired one: %q", got)
	}
}
