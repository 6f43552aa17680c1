package outboxtest

import (
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestQueries(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	pgtest.PrepareAll(t, db, map[string]string{"queryAppended": queryAppended})
}

func TestCommits(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, "COMMIT;": true, "-- inbox: commit\ncommit": true, " End work": true, "commit -- now": true,
		"select 1": false, "begin": false, "-- commit\nrollback": false, "": false, "commits": false,
	} {
		if commits(sql) != want {
			t.Errorf("commits(%q) is %v", sql, !want)
		}
	}
}
