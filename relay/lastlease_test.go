package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestP10LeaseStaysWithItsLanes: a relay that leaves without having given its lanes back leaves its lease behind. After
// the end of the last lease nothing was published, which the check after a restore goes by.
func TestP10LeaseStaysWithItsLanes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	resigned := func(doubt bool) bool {
		r, err := New(db.Pool, &topicPublisher{refused: func(string) bool { return false }},
			Config{Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		d, err := Drive(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if doubt {
			d.r.Lanes.DoubtAll()
		}
		d.Close()
		return pgtest.One[bool](t, db, `select not exists (select from relay_member)`)
	}
	if !resigned(false) {
		t.Error("a relay without lanes has not left")
	}
	if resigned(true) {
		t.Error("a relay has left, and nothing has the lease of its lanes")
	}
}
