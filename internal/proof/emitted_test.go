//go:build failpoints

package proof

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// cellEmitted has a producer that emits most of its events, and appends others of the same keys. Nothing may take the slot away: what is
// emitted would be lost with it.
func cellEmitted(t *testing.T) *cell {
	t.Helper()
	c := reading(t, emptyCell(t))
	c.emits = true
	t.Cleanup(func() { // before the slot is dropped
		if _, err := relay.GiveUpEmitted(context.Background(), c.db.Pool, ""); err != nil {
			t.Error(err)
		}
	})
	return c
}

// walFar is a segment of the WAL that lies further from its beginning than numbers of a base reach: 256 TiB.
const walFar = "000000010001000100000001"

// TestKillsEmitted is TestKills for a relay that takes emitted events, at each point of theirs, and where it reads, publishes, confirms,
// gives back and ends.
func TestKillsEmitted(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	server.StopFast()
	server.SkipWAL(t, walFar)
	server.Start(t)
	c := reading(t, cellIn(t, server.Database(t, migrations.Outbox, migrations.Inbox)))
	c.emits = true
	t.Cleanup(func() { _, _ = relay.GiveUpEmitted(context.Background(), c.db.Pool, "") })
	c.startAll(t)
	var report tally
	for _, p := range pointsOf(emitting) {
		c.dieAt(t, relaying, p, &report)
	}
	for _, name := range []failpoint.Name{
		failpoint.RelayWALHandedOver, failpoint.RelayWALRead, failpoint.PublisherAcked, failpoint.RelayWALAside, failpoint.RelayWALSetAside,
		failpoint.RelayWALConfirm, failpoint.RelayWALConfirmed, failpoint.RelayWALFinish, failpoint.RelayWALFinished, failpoint.RelaySettled,
	} {
		c.dieAt(t, relaying, failpoint.Point{Name: name}, &report)
	}
	c.start(t, relaying)
	c.finish(t)
	c.emitted(t)
	report.all(t, func(r role) bool { return r == emitting })
}

// TestKillsEmittedByWatermark is a producer that emits, a worker that goes by numbers, and a relay that dies wherever it may without anything
// being refused or held: no new numbering begins then, and every effect happens once.
func TestKillsEmittedByWatermark(t *testing.T) {
	t.Parallel()
	c := cellEmitted(t)
	c.dedup, c.calm = byWatermark, true
	for _, r := range []role{producer, relaying, worker} {
		c.start(t, r)
	}
	c.killAtEnd(t)
	var report tally
	for _, name := range []failpoint.Name{
		failpoint.RelayEmittedOpen, failpoint.RelayEmittedOpened, failpoint.RelayWALRead, failpoint.PublisherAcked, failpoint.RelayEmittedPublished,
		failpoint.RelayWALDeleted, failpoint.RelayWALConfirm, failpoint.RelayWALConfirmed, failpoint.RelayEmittedClose, failpoint.RelayEmittedClosed,
		failpoint.RelayEmittedEnd, failpoint.RelayEmittedEnded, failpoint.RelayWALFinish, failpoint.RelayWALFinished,
	} {
		c.dieAt(t, relaying, failpoint.Point{Name: name}, &report)
	}
	c.start(t, relaying)
	c.finish(t)
	c.emitted(t)
	if n := pgtest.One[int](t, c.db, `select incarnation from outbox_meta`); n != 1 {
		t.Errorf("incarnation %d: nobody had to begin a new numbering", n)
	}
	if n := pgtest.One[int](t, c.db, `select (select count(*) from inbox_message) + (select count(*) from inbox_message_any)`); n != 0 {
		t.Errorf("%d events have a row in the inbox", n)
	}
}

// TestFaultsEmitted is TestFaults for a relay that takes emitted events.
func TestFaultsEmitted(t *testing.T) {
	t.Parallel()
	c := cellEmitted(t)
	c.startAll(t)
	total := map[failpoint.Name]int{}
	var points []failpoint.Point
	for _, p := range pointsOf(emitting) {
		if p.Name != failpoint.RelayEmittedNumbersEnd { // that needs a server of its own
			points = append(points, p)
		}
	}
	c.faults(t, relaying, points, total)
	c.finish(t)
	c.emitted(t)
	allFaulted(t, emitting, total)
}

// TestCommitCutsEmitted is TestCommitCuts for the transactions of producers that emit and of the relay that takes what they emit.
func TestCommitCutsEmitted(t *testing.T) {
	t.Parallel()
	c := cellEmitted(t)
	c.cutAll(t, []cut{
		{statement: "outbox: emit many"},
		{statement: "relay: stream"},
		{statement: "relay: emitted"},
		{statement: "relay: put down", prepare: burst},
		{statement: "relay: emitted until"},
		{statement: "relay: wal confirm"},
		{statement: "relay: wal own", prepare: anotherReader},
	})
	c.finish(t)
	c.emitted(t)
}

// emitted checks that events were published that were never rows: the archive has all others.
func (c *cell) emitted(t *testing.T) {
	t.Helper()
	n := pgtest.One[int](t, c.db, `select count(*) from paid p where not exists (select from outbox_archive a where a.message_id = p.id)`)
	t.Logf("%d events of %d were never rows", n, pgtest.One[int](t, c.db, `select count(*) from paid`))
	if n == 0 {
		t.Error("every event was a row")
	}
}

// streamedLanes has lanes come from the WAL that are not open to emitted events.
func streamedLanes(t *testing.T, c *cell) {
	c.until(t, `select count(*) >= 8 from outbox_streamed where emitted = 'none'`, envEmits+"=")
}

// openLanes has producers emit, also for account-2.
func openLanes(t *testing.T, c *cell) {
	c.until(t, `select count(*) >= 8 and bool_or(lane = hashtextextended('account-2' collate "C", 0) & 31) from outbox_streamed where emitted = 'open'`)
}

// until runs a relay until something is so, and kills it.
func (c *cell) until(t *testing.T, sql string, env ...string) {
	t.Helper()
	p := c.start(t, relaying, env...)
	pgtest.AwaitSQL(t, c.db, sql)
	p.Stop(syscall.SIGKILL, time.Minute)
}

// refusedAmongMany has the relay that begins next find a refused event before many others that were emitted.
func refusedAmongMany(t *testing.T, c *cell) {
	openLanes(t, c)
	burst(t, c)
}

// burst emits more in one transaction than a relay takes at once, of which an early one is refused.
func burst(t *testing.T, c *cell) {
	t.Helper()
	s := &stage{db: c.db.Pool, topic: c.topic, emits: true}
	pgtest.Await(t, "a transaction of many events", func() (bool, error) { // it may meet the producer's locks in another order
		err := pgx.BeginFunc(t.Context(), s.db, func(tx pgx.Tx) error {
			for n := range 30 {
				refuse := n == 0
				err := payIn(t.Context(), tx, s, (n*10+20)%accounts, func(of string) int {
					if of == "account-2" && refuse {
						return sortRefused
					}
					return sortOrdinary
				})
				if err != nil {
					return fmt.Errorf("part %d: %w", n, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Log(err)
		}
		return err == nil, nil
	})
}

// lastNumbers leaves no numbers for what is committed from now on.
func lastNumbers(t *testing.T, c *cell) {
	openLanes(t, c)
	c.db.Exec(t, `update outbox_wal set base = '0/1'`)
}
