package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestP9_6_AnotherMemberCounted: a member finds a released event and waits for its key's lock. Meanwhile another member
// has counted the event and runs it. The first member must not count it too: with many members such counts would mark a
// harmless event as one that kills its process.
func TestP9_6_AnotherMemberCounted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	in, err := New(db.Pool, "ledger", Config{Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	in.Each(func(context.Context, pgx.Tx, event.Event) error { ran++; return nil })
	hash := sql.KeyHash("", "payments", "k")
	db.Exec(t, "insert into inbox_parked_key (consumer_name, key_hash, tenant, topic, key, state) values ('ledger', "+
		"$1, '', 'payments', 'k', 'releasing')", hash)
	db.Exec(t,
		`insert into inbox_parked (consumer_name, message_id, key_hash, kind, topic, record_partition, record_offset,
				record_millis, record_key)
		values ('ledger', $1, $2, 'failed', 'payments', 0, 0, 0, 'k')`, event.NewID().String(), hash)
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"select from inbox_parked_key for share",
		"update inbox_parked set release_attempts = 1",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	looked := make(chan error, 1)
	go func() { looked <- in.release(t.Context()) }()
	pgtest.AwaitBlocking(t, db, tx.Conn().PgConn().PID())
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-looked; err != nil || ran != 0 {
		t.Fatalf("the effect ran %d times: %v", ran, err)
	}
	if n := pgtest.One[int](t, db, "select release_attempts from inbox_parked"); n != 1 {
		t.Errorf("%d runs are counted, want 1, the other member's", n)
	}
	// After that member's death the next query reads its count, and the event runs.
	if err := in.release(t.Context()); err != nil || ran != 1 {
		t.Errorf("it ran %d times: %v", ran, err)
	}
}
