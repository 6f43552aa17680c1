package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// P10: a restored database lacks the events that were published after the backup. The Kafka log reveals it.
func TestP10LogIsAheadOfDatabase(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `update outbox_lane set reserved_seq = 100 * lane`)
	outbox := pgtest.One[string](t, db, `select outbox_id::text from outbox_meta`)
	at := func(epoch string, lane int16, seq int64) event.Event {
		return event.Event{Topic: "payments", Position: event.Position{
			Epoch: epoch, Lane: lane, Seq: seq, Partition: 2,
			Offset: 7,
		}}
	}
	check := func(events ...event.Event) error {
		_, err := operator.CheckNumbers(t.Context(), db.Pool, "", events)
		return err
	}
	other := "0198b2f0-5a3e-7c11-9d3e-2f1f6a7b8c9d"

	if err := check(at(outbox+".1", 3, 300), at(other+".1", 3, 9999), at("", 3, 9999), at("nonsense", 3, 9999),
		at(outbox+".x", 3, 9999)); err != nil {
		t.Errorf("reserved numbers, and another outbox's, are no evidence: %v", err)
	}
	var outdated *operator.OutdatedError
	if err := check(at(outbox+".1", 4, 5), at(outbox+".1", 3, 301)); !errors.As(err, &outdated) ||
		outdated.Newer || outdated.Lane != 3 || outdated.Seen != 301 || outdated.Reserved != 300 ||
		outdated.Topic != "payments" || outdated.Offset != 7 {
		t.Errorf("a number above the reserved ones: %v", err)
	}
	if err := check(at(outbox+".2", 3, 1)); !errors.As(err, &outdated) || !outdated.Newer ||
		!strings.Contains(err.Error(), "docs/failover.md") {
		t.Errorf("an incarnation that this outbox has not begun: %v", err)
	}
	db.Exec(t, `update outbox_meta set incarnation = 2`)
	if err := check(at(outbox+".1", 3, 301)); err != nil {
		t.Errorf("the numbers of an earlier incarnation are no evidence: %v", err)
	}
}

// P10: numbers are reserved a million at a time, so that a backup may have those of all later events. The leases of its
// relays are as old as itself.
func TestP10LogIsLaterThanLeases(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `update outbox_lane set reserved_seq = 1000000, lease_until = now() - interval '1 day'`)
	epoch := pgtest.One[string](t, db, `select outbox_id || '.1' from outbox_meta`)
	check := func(ago time.Duration) error {
		e := event.Event{Topic: "payments", Position: event.Position{
			Epoch: epoch, Lane: 3, Seq: 5, Partition: 2, Offset: 7, Timestamp: time.Now().Add(-ago),
		}}
		_, err := operator.CheckNumbers(t.Context(), db.Pool, "", []event.Event{e})
		return err
	}
	for _, ago := range []time.Duration{25 * time.Hour, 24*time.Hour - 9*time.Minute, -time.Hour} {
		if err := check(ago); err != nil {
			t.Errorf("published %v ago: %v", ago, err)
		}
	}
	var outdated *operator.OutdatedError
	if err := check(23 * time.Hour); !errors.As(err, &outdated) || outdated.Leased.IsZero() ||
		outdated.Published.IsZero() || !strings.Contains(err.Error(), "relay fence") {
		t.Errorf("published an hour after the last lease: %v", err)
	}
	db.Exec(t, `insert into relay_member (owner, seen, lease_until) values (gen_random_uuid(), now(), now())`)
	if err := check(time.Second); err != nil {
		t.Errorf("published under a lease of a relay: %v", err)
	}
	db.Exec(t, `delete from relay_member`)
	db.Exec(t, `update outbox_lane set lease_until = '-infinity'`)
	if err := check(time.Second); !errors.As(err, &outdated) || !outdated.Leased.IsZero() {
		t.Errorf("published, and there was no relay: %v", err)
	}
}

func TestPinnedTopics(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('b', 3), ('a', 1)`)
	got, err := operator.PinnedTopics(t.Context(), db.Pool, "")
	if err != nil || len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("got %v, %v", got, err)
	}
}

// restoreInPlace gives outbox_lane another file, as a restore does, and the rows that it had.
const restoreInPlace = `do $$ begin
	create temp table lanes on commit drop as select * from outbox_lane;
	truncate outbox_lane; insert into outbox_lane select * from lanes;
	end $$`

// TestP10RestoredUnderARelay: an outbox is restored in place between the check of a relay that starts and its first
// heartbeat, or under a relay that works, even as of a backup in which it owns its lanes. Nothing is published from it
// before it is checked.
func TestP10RestoredUnderARelay(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	box, err := relay.Open(db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	asked, verdicts := make(chan struct{}), make(chan error)
	r := newRelay(t, db, to, config(func(c *relay.Config) {
		c.Check = func(ctx context.Context) (string, error) {
			w, err := box.Waits(ctx)
			if err != nil {
				return "", err
			}
			select {
			case asked <- struct{}{}:
				return w.Outbox, <-verdicts
			case <-ctx.Done():
				return "", nil
			}
		}
	}))
	fill(t, db, 1, 1)
	stop := startRelay(t, r)
	<-asked // it has the identity
	db.Exec(t, restoreInPlace)
	verdicts <- nil
	<-asked
	if n := to.count(); n != 0 {
		t.Errorf("%d events were published from another outbox than the one that was checked", n)
	}
	verdicts <- nil
	awaitDrained(t, db)

	db.Exec(t, restoreInPlace)
	fill(t, db, 1, 1)
	<-asked
	if n := to.count(); n != 1 {
		t.Errorf("%d events were published, want the one from before the restore", n)
	}
	restored := errors.New("the outbox was restored")
	verdicts <- restored
	if err := stop(); !errors.Is(err, restored) {
		t.Errorf("Run returned %v", err)
	}
}

// TestP10RestoredUnderTheWAL: a relay that reads the WAL notices another outbox by a heartbeat. It has it checked, and
// reads the WAL again.
func TestP10RestoredUnderTheWAL(t *testing.T) {
	t.Parallel()
	db, _ := walDB(t)
	to := &memory{}
	box, err := relay.Open(db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	var checks atomic.Int32
	stop := startRelay(t, newRelay(t, db, to, config(fromWAL, shortLease, func(c *relay.Config) {
		c.Check = func(ctx context.Context) (string, error) {
			checks.Add(1)
			w, err := box.Waits(ctx)
			return w.Outbox, err
		}
	})))
	awaitStreaming(t, db)
	db.Exec(t, restoreInPlace)
	pgtest.Await(t, "another check", func() (bool, error) { return checks.Load() > 1, nil })
	awaitStreaming(t, db)
	fill(t, db, 20, 5)
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 20)
}
