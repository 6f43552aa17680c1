package inbox

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestP9_3_CommitAnsweredByRollback: the server answers COMMIT with ROLLBACK if a statement failed and the error was
// ignored. The transaction is rolled back.
func TestP9_3_CommitAnsweredByRollback(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	in, err := New(db.Pool, "ledger", Config{Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1})
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Connect(t)
	for _, sql := range []string{sqlBegin, "select 1 / 0"} {
		_, _ = conn.Exec(t.Context(), sql)
	}
	if status := conn.PgConn().TxStatus(); status != 'E' {
		t.Fatalf("the transaction is %q", status)
	}
	f := in.commit(t.Context(), conn)
	if f == nil || f.kind != failed || f.index >= 0 {
		t.Errorf("a rollback counts as %+v, want a failure of any of the events", f)
	}
}
