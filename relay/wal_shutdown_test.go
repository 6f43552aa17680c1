package relay_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestWALShutdownDoesNotWaitForDeletes: Postgres is shut down in order while what was published is not deleted yet. It
// waits for whoever reads its WAL until all of that is confirmed, and lets nobody in who could: the relay lets go of
// it, and sends those events once more, under the same numbers, when the server is back.
func TestWALShutdownDoesNotWaitForDeletes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, migrations.Outbox)
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	to := &memory{entered: make(chan []event.Event), gate: make(chan struct{})}
	// A lease that runs out would end the reading as well.
	stop := running(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Lease = time.Minute })))
	streaming(t, db)
	fill(t, db, 10, 10)
	<-to.entered
	stopped := make(chan struct{})
	go func() { defer close(stopped); server.StopFast() }()
	pgtest.Await(t, "the shutdown", func() (bool, error) {
		conn, err := pgx.Connect(t.Context(), db.URL)
		if err == nil {
			return false, conn.Close(t.Context())
		}
		return pgerr.Is(err, pgerr.CannotConnectNow), nil
	})
	close(to.gate)
	go func() {
		for range to.entered { //nolint:revive // whatever comes
		}
	}()
	<-stopped
	if _, err := os.Stat(filepath.Join(server.Dir(), "data", "postmaster.pid")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the server had to be killed: %v", err)
	}
	server.Start(t)
	db.Pool.Reset()
	drained(t, db)
	streaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	log := to.events()
	inOrder(t, log, 10)
	if n := byNumber(t, log); n != 1 {
		t.Errorf("%d numberings", n)
	}
}
