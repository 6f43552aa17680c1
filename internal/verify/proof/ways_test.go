//go:build failpoints

package proof

import (
	"context"
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// way is how a point is reached that ordinary work does not pass again and again. The zero way: by itself.
type way struct {
	later   int                         // the later hit to die at; 0: the third
	after   failpoint.Name              // where another process of the role dies first
	beside  string                      // more failpoint settings
	env     []string                    // of the process
	stop    failpoint.Name              // it is told to stop when it was here
	prepare func(t *testing.T, c *cell) // while no process of the role runs
}

// special ways have something done for them before or meanwhile.
func (w *way) special() bool {
	return w.after != "" || w.beside != "" || w.stop != "" || w.prepare != nil || w.env != nil
}

// ways lists them. A process that passes a point only once cannot die at a later hit: it dies at the first twice.
var ways = map[failpoint.Name]*way{
	failpoint.RelayIncarnation:       {later: 1, prepare: otherTimeline},
	failpoint.RelayIncarnationRaised: {later: 1, prepare: otherTimeline},
	failpoint.RelayJournal:           {env: []string{envSmallClaims + "=1"}},
	failpoint.RelayPin:               {later: 1},
	failpoint.RelayPinned:            {later: 1},
	failpoint.RelayFenceRaise:        {later: 1, beside: "relay/claim-committed=error@2"},
	failpoint.RelayFenceRaised:       {later: 1, beside: "relay/settled=error@2"},
	failpoint.RelayTakeOver:          {later: 1},
	failpoint.RelayTakenOver:         {later: 1},
	failpoint.RelayGiveLanes:         {later: 1, stop: failpoint.RelayClaimCommitted},
	failpoint.RelayLanesGiven:        {later: 1, stop: failpoint.RelayClaimCommitted},
	failpoint.RelayResign:            {later: 1, stop: failpoint.RelayClaimCommitted},
	failpoint.RelayResigned:          {later: 1, stop: failpoint.RelayClaimCommitted},
	failpoint.RelayArchive:           {later: 2, prepare: archiveDays},
	failpoint.RelayArchiveMade:       {later: 2, prepare: archiveDays},
	failpoint.RelayArchiveDrop:       {later: 1, prepare: archiveDays},
	failpoint.RelayArchiveClean:      {later: 1, prepare: archiveDays},

	failpoint.RelayWALAbandoned: {later: 1, prepare: noSlot},
	failpoint.RelayWALSlot:      {later: 1, prepare: noSlot},
	failpoint.RelayWALSlotMade:  {later: 1, prepare: noSlot},
	failpoint.RelayWALBegun:     {later: 1},
	failpoint.RelayWALHandOver:  {later: 2},
	failpoint.RelayWALAside:     {later: 2},
	failpoint.RelayWALSetAside:  {later: 2},
	failpoint.RelayWALFinish:    {later: 1, stop: failpoint.RelayWALPublished},
	failpoint.RelayWALFinished:  {later: 1, stop: failpoint.RelayWALPublished},

	failpoint.ConsumerAssigned:   {later: 1},
	failpoint.InboxRange:         {later: 2},
	failpoint.InboxRangeWritten:  {later: 2},
	failpoint.InboxCount:         {later: 2, after: failpoint.InboxEffected},
	failpoint.InboxCounted:       {later: 2, after: failpoint.InboxEffected},
	failpoint.InboxUncount:       {later: 2, after: failpoint.InboxEffected, beside: "inbox/counted=error*6"},
	failpoint.InboxUncounted:     {later: 2, after: failpoint.InboxEffected, beside: "inbox/counted=error*6"},
	failpoint.InboxHalted:        {later: 1, env: []string{envBound + "=1"}},
	failpoint.InboxListsMeasured: {later: 1, env: []string{envBound + "=1"}},
	failpoint.InboxDayMade:       {later: 2, prepare: inboxDays},
	failpoint.InboxDaysMade:      {later: 1, prepare: inboxDays},
	failpoint.InboxDetach:        {later: 2, prepare: inboxDays},
	failpoint.InboxDetached:      {later: 2, prepare: inboxDays},
	failpoint.InboxDayDropped:    {later: 2, prepare: inboxDays},
	failpoint.InboxClean:         {later: 1, prepare: oldIDs},
	failpoint.InboxCleaned:       {later: 1, prepare: oldIDs},
}

// wayOf is how to reach a point.
func wayOf(name failpoint.Name) way {
	w := way{}
	if listed := ways[name]; listed != nil {
		w = *listed
	}
	if w.later == 0 {
		w.later = 3
	}
	return w
}

// anotherWorker makes a new process get the partitions.
func anotherWorker(t *testing.T, c *cell) {
	c.running[worker].Stop(syscall.SIGKILL, time.Minute)
	c.start(t, worker)
}

// anotherOperator makes a new process do what an operator does once.
func anotherOperator(t *testing.T, c *cell) {
	c.running[person].Stop(syscall.SIGKILL, time.Minute)
	c.start(t, person)
}

// killedWorker makes one find that the process before it died within a batch.
func killedWorker(t *testing.T, c *cell) {
	c.running[worker].Stop(syscall.SIGKILL, time.Minute)
	c.die(t, worker, c.start(t, worker, failpoint.EnvSettings+"="+string(failpoint.InboxEffected)+"=kill"))
	c.start(t, worker)
}

// poisonedKey has an effect fail, and again after the first release of its key.
func poisonedKey(t *testing.T, c *cell) { c.pay(t, "account-0", sortStubborn) }

// refusedKey has the broker refuse an event of a key, with others behind it.
func refusedKey(t *testing.T, c *cell) {
	c.pay(t, "account-2", sortRefused)
	c.pay(t, "account-2", sortOrdinary)
}

// pay makes one account's payment be of a sort, and others beside it.
func (c *cell) pay(t *testing.T, account string, sort int) {
	t.Helper()
	err := pay(t.Context(), &stage{db: c.db.Pool, topic: c.topic}, 0, func(of string) int {
		if of == account {
			return sort
		}
		return sortOrdinary
	})
	if err != nil {
		t.Fatal(err)
	}
}

// otherTimeline makes the next claim find the database on another timeline than the numbers are of.
func otherTimeline(t *testing.T, c *cell) {
	c.db.Exec(t, `update outbox_meta set timeline = '000000FF'`)
}

// noSlot takes the replication slot away while no relay reads it.
func noSlot(t *testing.T, c *cell) {
	const gone = `select pg_drop_replication_slot(s.slot_name) from pg_replication_slots s, outbox_wal w where s.slot_name = w.slot`
	// the connection of a relay that died may still be there
	pgtest.Await(t, "the end of the slot", func() (bool, error) {
		_, err := c.db.Pool.Exec(context.Background(), gone)
		return err == nil, nil
	})
}

// archiveDays takes some coming days of the archive away, and puts old ones there.
func archiveDays(t *testing.T, c *cell) {
	now := time.Now().UTC()
	for n := 4; n <= 6; n++ {
		c.db.Exec(t, "drop table if exists outbox_archive_"+now.AddDate(0, 0, n).Format("20060102"))
	}
	day := now.AddDate(0, 0, -40-c.started%300)
	c.db.Exec(t, fmt.Sprintf("create table if not exists outbox_archive_%s partition of outbox_archive for values from ('%s') to ('%s')",
		day.Format("20060102"), day.Format("2006-01-02"), day.AddDate(0, 0, 1).Format("2006-01-02")))
	c.db.Exec(t, `insert into outbox_archive_default (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key, type, content_type, created_at)
		select '2019-01-01', 'old', 0, 0, 0, gen_random_uuid(), '', '', 'old', '', 'Old', '', '2019-01-01'`)
}

// inboxDays does the same with the inbox.
func inboxDays(t *testing.T, c *cell) {
	now := time.Now().UTC().Truncate(24 * time.Hour)
	for n := 4; n <= 6; n++ {
		c.db.Exec(t, "drop table if exists inbox_message_"+now.AddDate(0, 0, n).Format("20060102"))
	}
	for n := range 3 {
		day := now.AddDate(0, 0, -40-(3*c.started+n)%300)
		name := "inbox_message_" + day.Format("20060102")
		c.db.Exec(t, fmt.Sprintf("create table if not exists %s partition of inbox_message for values from ('%s') to ('%s')", name, firstID(day), firstID(day.AddDate(0, 0, 1))))
	}
}

// firstID is the lowest v7 id of a time.
func firstID(at time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16)
	return id
}

// oldIDs puts ids into inbox_message_any that are older than the window.
func oldIDs(t *testing.T, c *cell) {
	c.db.Exec(t, `insert into inbox_message_any (consumer_name, message_id, processed_at) select $1, gen_random_uuid(), '2019-01-01' from generate_series(1, 10)`, consumerName)
}
