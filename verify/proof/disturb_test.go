package proof

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// disturbance causes statements that ordinary work sends rarely or never.
type disturbance func(t *testing.T, c *cell)

var commonDisturbances = []disturbance{
	poisonedKey, refusedKey, withdrawn, inboxDays, oldIDs, archiveDays,
	killed(worker), lost(worker, "inbox: count a run"), lost(worker, "inbox: count a release"),
	lost(relaying, "relay: take"), lost(relaying, "relay: settle archived"), ends(relaying), ends(worker),
}

// everyFourth skips three of four calls: lanes return to a new slot one by one.
func everyFourth(do disturbance) disturbance {
	var n atomic.Int64
	return func(t *testing.T, c *cell) {
		if n.Add(1)%4 == 0 {
			do(t, c)
		}
	}
}

// ends stops a role with SIGTERM.
func ends(r role) disturbance { return func(_ *testing.T, c *cell) { c.terminate(r) } }

// killed kills a role, so that its next life finds unfinished work.
func killed(r role) disturbance {
	return func(_ *testing.T, c *cell) { c.life(r).process.Stop(syscall.SIGKILL, time.Minute) }
}

// lost drops the replies to a statement and to the COMMIT of its transaction, in the current life.
func lost(r role, statement string) disturbance {
	return func(_ *testing.T, c *cell) {
		match := func(sql string) bool { return strings.HasPrefix(sql, "-- "+statement+"\n") }
		p := c.life(r).proxy
		p.On(match, 0, pgtest.DropReply)
		p.OnCommitAfter(match, pgtest.DropReply)
	}
}

// poisonedKey makes an effect fail, and again after the first release of its key.
func poisonedKey(t *testing.T, c *cell) { c.pay(t, "account-0", sortStubborn) }

// refusedKey makes the broker refuse an event of a key, with others behind it.
func refusedKey(t *testing.T, c *cell) {
	c.pay(t, "account-2", sortRefused)
	c.pay(t, "account-2", sortOrdinary)
}

// withdrawn appends events that an operator cancels or discards, and scheduled ones.
func withdrawn(t *testing.T, c *cell) {
	for _, sort := range []int{sortCancel, sortDiscard, sortDrop} {
		c.pay(t, "account-4", sort)
	}
	c.pay(t, "", 0)
}

// pay makes payments of ten accounts: of the sort for the given account, or for all if it is empty.
func (c *cell) pay(t *testing.T, account string, sort int) {
	t.Helper()
	if !pgtest.One[bool](t, c.db, fmt.Sprintf(hasRoom, undecided[c.dedup])) {
		return
	}
	err := pay(t.Context(), &stage{db: c.db.Pool, topic: c.topic}, 0, func(of string) int {
		if of == account || account == "" {
			return sort
		}
		return sortOrdinary
	})
	if err != nil {
		t.Fatal(err)
	}
}

// otherTimeline makes the database's timeline differ from that of the numbers.
func otherTimeline(t *testing.T, c *cell) {
	c.db.Exec(t, `update outbox_meta set timeline = '000000FF'`)
}

// another is the source of the events of other outboxes.
const another = "another"

// anotherOutbox publishes an event of an outbox that no partition has met yet: the worker makes a mark for it. Its
// effect skips it.
func anotherOutbox(t *testing.T, c *cell) {
	e := event.Event{
		ID: uuid.Must(uuid.NewV7()), Source: another, Topic: c.topic, Key: another, Type: "Another", Time: time.Now(),
		Payload: []byte(`{}`), Headers: map[string]string{"kind": kindSkip},
		Position: event.Position{Epoch: uuid.NewString() + ".1", Seq: 1},
	}
	r := kafkatest.Record{Partition: int32(c.count() % 4), Key: []byte(e.Key), Value: e.Payload}
	for _, h := range event.AppendHeaders(nil, &e) {
		r.Headers = append(r.Headers, kafkatest.Header{Key: h.Key, Value: h.Value})
	}
	kafkatest.ProduceAt(t, []string{c.broker}, c.topic, r)
}

// archiveDays drops some coming daily partitions of the archive, and creates expired ones.
func archiveDays(t *testing.T, c *cell) {
	now := time.Now().UTC()
	for n := 4; n <= 6; n++ {
		c.db.Exec(t, "drop table if exists outbox_archive_"+now.AddDate(0, 0, n).Format("20060102"))
	}
	day := now.AddDate(0, 0, -40-c.count()%300)
	c.db.Exec(t, fmt.Sprintf("create table if not exists outbox_archive_%s partition of outbox_archive for values "+
		"from ('%s') to ('%s')",
		day.Format("20060102"), day.Format("2006-01-02"), day.AddDate(0, 0, 1).Format("2006-01-02")))
	c.db.Exec(t,
		`insert into outbox_archive_default (published_at, epoch, lane, seq, id, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		select '2019-01-01', 'old', 0, 0, 0, gen_random_uuid(), '', '', 'old', '', 'Old', '', '2019-01-01'`)
}

// inboxDays does the same for the inbox.
func inboxDays(t *testing.T, c *cell) {
	now := time.Now().UTC().Truncate(24 * time.Hour)
	for n := 4; n <= 6; n++ {
		c.db.Exec(t, "drop table if exists inbox_message_"+now.AddDate(0, 0, n).Format("20060102"))
	}
	for n := range 3 {
		day := now.AddDate(0, 0, -40-(3*c.count()+n)%300)
		name := "inbox_message_" + day.Format("20060102")
		c.db.Exec(t, fmt.Sprintf("create table if not exists %s partition of inbox_message for values from ('%s') "+
			"to ('%s')", name, firstID(day), firstID(day.AddDate(0, 0, 1))))
	}
}

// count returns how many processes were started.
func (c *cell) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started
}

// firstID returns the lowest v7 id of a time.
func firstID(at time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16)
	return id
}

// oldIDs inserts ids into inbox_message_any that are older than the window.
func oldIDs(t *testing.T, c *cell) {
	c.db.Exec(t,
		`insert into inbox_message_any (consumer_name, message_id, processed_at) select $1, gen_random_uuid(),
			'2019-01-01' from generate_series(1, 10)`, consumerName)
}

// anotherReader ends the WAL reader's connection.
func anotherReader(t *testing.T, c *cell) {
	c.db.Exec(t,
		`select pg_terminate_backend(s.active_pid) from pg_replication_slots s, outbox_wal w where s.slot_name = w.slot
			and s.active_pid is not null`)
}

// anotherSlot drops the slot of the WAL reader.
func anotherSlot(t *testing.T, c *cell) {
	pgtest.Await(t, "the loss of the slot", func() (bool, error) {
		_, _ = c.db.Pool.Exec(context.Background(),
			`select pg_terminate_backend(s.active_pid) from pg_replication_slots s, outbox_wal w
				where s.slot_name = w.slot and s.active_pid is not null`)
		_, err := c.db.Pool.Exec(context.Background(),
			`select pg_drop_replication_slot(s.slot_name) from pg_replication_slots s, outbox_wal w
				where s.slot_name = w.slot`)
		return err == nil, nil
	})
}

// foreignSlot replaces the slot of the WAL reader by another one of the same name.
func foreignSlot(t *testing.T, c *cell) {
	name := pgtest.One[string](t, c.db, `select coalesce(max(slot), '') from outbox_wal`)
	anotherSlot(t, c)
	// The relay may have created one already.
	_, _ = c.db.Pool.Exec(context.Background(),
		`select pg_create_logical_replication_slot($1, 'pgoutput') where $1 <> ''`, name)
}
