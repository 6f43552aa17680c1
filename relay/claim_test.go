package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// TestP3_1_ClaimReadsAfterItsLock: a claim waits for a lane that an operator has locked to discard a released event.
// The claim must see the discard, and not the rows of the time when it began to wait.
func TestP3_1_ClaimReadsAfterItsLock(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(1)
	b.set(refuseK3("0"))
	d, err := relay.Drive(t.Context(), newRelay(t, db, b, config(func(c *relay.Config) { c.Lease = time.Hour })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	f := &floors{Driver: d, t: t, db: db}
	appendTo(t, db, "payments", 4, 4, 0)
	_, err = d.Step(t.Context())
	f.must(err)
	b.set(nil)
	_, err = newOperator(t, db).ReleaseKey(t.Context(), "", "payments", "k3", admin.Seen{}, "mended")
	f.must(err)
	_, err = d.Probe(t.Context())
	f.must(err)
	operating := f.begin(db, `select lane from outbox_lane for update`, `delete from outbox_parked`)
	stepped := make(chan error, 1)
	go func() { _, err := d.Step(t.Context()); stepped <- err }()
	pgtest.AwaitBlocked(t, db, d.PID())
	f.exec(operating, "commit")
	f.must(<-stepped)
	if got := b.firsts("k3"); len(got) != 0 {
		t.Fatalf("the claim published an event that was discarded while it waited: %v", got)
	}
	awaitEmpty(t, db)
}

// TestP3_2_OpenEntryIsSentUnchanged: an open entry is sent in the order of its numbers. That is not the order of ids if
// the entry was drained from held events.
func TestP3_2_OpenEntryIsSentUnchanged(t *testing.T) {
	t.Parallel()
	f := &floors{t: t, db: outboxDB(t), to: &memory{}}
	for _, n := range []string{"0", "1", "2"} {
		f.db.Exec(t, `insert into outbox_event (topic, key, type, payload) values ('payments', 'k', 'T', $1)`,
			[]byte(n))
	}
	f.db.Exec(t, `insert into outbox_claim select min(lane), 101, '{2,1}', '{101,105}' from outbox_event`)
	f.db.Exec(t, `update outbox_lane set reserved_seq = 200`)
	d, err := relay.Drive(t.Context(), newRelay(t, f.db, f.to, config(func(c *relay.Config) { c.Lease = time.Hour })))
	f.must(err)
	t.Cleanup(d.Close)
	f.Driver = d
	f.drain()
	var got []string
	for _, e := range f.to.events() {
		got = append(got, fmt.Sprintf("%s@%d", e.Payload, e.Position.Seq))
	}
	if !slices.Equal(got, []string{"1@101", "0@105", "2@201"}) {
		t.Errorf("the open entry has event 1 under 101 and event 0 under 105, and was sent as %v", got)
	}
}

// TestP3_2_BlockBelongsToFence: a claim commits, and the relay does not get the reply. Under the raised fence no number
// of the old block is given again.
func TestP3_2_BlockBelongsToFence(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	proxy := pgtest.NewProxy(t, db.URL)
	r, err := relay.New(poolAt(t, proxy.URL()), to, config(func(c *relay.Config) { c.Lease = time.Hour }))
	if err != nil {
		t.Fatal(err)
	}
	d, err := relay.Drive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	f := &floors{Driver: d, t: t, db: db, to: to}
	fill(t, db, 320, 160)
	f.drain()
	trap := proxy.On(commitAfter("take"), 0, pgtest.DropReply)
	fillFrom(t, db, 2, 1)
	_, err = d.Step(t.Context())
	<-trap.Fired()
	if err == nil {
		t.Fatal("the claim was not cut")
	}
	f.must(d.Beat(t.Context()))
	f.drain() // the claim's events, under their numbers
	fillFrom(t, db, 3, 1)
	f.drain()
	checkNumbers(t, to.events())
	checkOrder(t, to.events(), 320+40)
}
