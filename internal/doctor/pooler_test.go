package doctor

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	at := pgtest.NewPooler(t, db.AdminURL)
	for mode, want := range map[string]Severity{"": Fail, "&default_query_exec_mode=exec": Warn} {
		pool, err := pgxpool.New(t.Context(), "postgres://u@"+at+"/d?sslmode=disable"+mode)
		if err != nil {
			t.Fatal(err)
		}
		var f findings
		f.pooler(t.Context(), pool)
		pool.Close()
		expect(t, f.list, "pooler", want, "transaction mode")
	}
	var f findings
	f.pooler(t.Context(), db.Pool)
	f.pooling(true, false, false)
	if severity, text := worst(f.list, "pooler"); severity != OK || !strings.Contains(text, "direct") ||
		!strings.Contains(text, "session mode") {
		t.Errorf("%s %s", severity, text)
	}
}
