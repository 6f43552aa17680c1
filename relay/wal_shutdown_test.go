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

// TestWALShutdownDoesNotWaitForDeletes: Postgres is shut down cleanly while published events are not yet deleted. It
// waits until the readers of its WAL have confirmed all of it, and accepts no connection that could delete them. The
// relay stops reading, and sends those events again under the same numbers when the server is back.
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
	// An expired lease would end the reading as well.
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, func(c *relay.Config) { c.Lease = time.Minute })))
	awaitStreaming(t, db)
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
		for range to.entered { //nolint:revive // ignore all calls
		}
	}()
	<-stopped
	if _, err := os.Stat(filepath.Join(server.Dir(), "data", "postmaster.pid")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the server had to be killed: %v", err)
	}
	server.Start(t)
	db.Pool.Reset()
	awaitDrained(t, db)
	awaitStreaming(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	close(to.entered)
	log := to.events()
	checkOrder(t, log, 10)
	if n := checkByNumber(t, log); n != 1 {
		t.Errorf("%d numberings", n)
	}
}
