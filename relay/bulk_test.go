package relay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// bulky drives a relay whose lanes are read in bulk after their first claim, five events of each lane at a time.
func bulky(t *testing.T, change ...func(*relay.Config)) (*floors, *relay.Relay) {
	t.Helper()
	db, to := outboxDB(t), &memory{}
	r := newRelay(t, db, to, config(append([]func(*relay.Config){func(c *relay.Config) {
		c.FloorEvery, c.RescanEvery, c.Lease, c.ClaimEvents = 1, -1, 3600e9, 5*relay.Lanes
	}}, change...)...))
	relay.SetBulkFrom(r, 1)
	d, err := relay.Drive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &floors{Driver: d, t: t, db: db, to: to}, r
}

// TestP3Bulk: many small claims, read in bulk, publish everything once, in order, under numbers without a hole.
func TestP3Bulk(t *testing.T) {
	t.Parallel()
	f, r := bulky(t)
	fill(t, f.db, 5000, 200)
	if _, err := f.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := relay.BulkLanes(r); n != relay.Lanes {
		t.Errorf("%d lanes are read in bulk next, want all", n)
	}
	f.rise()
	f.drain()
	if n := relay.BulkLanes(r); n != 0 {
		t.Errorf("%d lanes had nothing and are read in bulk next", n)
	}
	log := f.to.events()
	if n := inOrder(t, log, 5000); n != 0 {
		t.Errorf("%d events were published twice", n)
	}
	next := map[int16]int64{}
	for _, e := range log {
		if want, ok := next[e.Position.Lane]; ok && e.Position.Seq != want {
			t.Fatalf("lane %d: number %d follows %d", e.Position.Lane, e.Position.Seq, want-1)
		}
		next[e.Position.Lane] = e.Position.Seq + 1
	}
	drained(t, f.db)
}

// TestP3BulkBytes: what is read in bulk is cut by bytes as well, and a row too large to travel for nothing, or with large
// headers, comes by the ordinary way, in its place.
func TestP3BulkBytes(t *testing.T) {
	t.Parallel()
	f, r := bulky(t, func(c *relay.Config) { c.ClaimBytes = 33_000 * relay.Lanes })
	for i := range 40 { // of one lane
		size, headers := 7900, "null" // four and their overhead are more than 33,000 bytes
		switch i {
		case 17, 18:
			size = 9000
		case 25:
			size = 3_000_000
		case 30:
			size, headers = 10, fmt.Sprintf(`{"h": "%s"}`, strings.Repeat("x", 20_000))
		}
		f.db.Exec(t, `insert into outbox_event (topic, key, type, headers, payload) values ('payments', 'k', 'T', nullif($1::jsonb, 'null'), convert_to(rpad($2::text, $3, ' '), 'UTF8'))`,
			headers, fmt.Sprint(i), size)
	}
	most, bulk := 0, 0
	for {
		n, err := f.Step(t.Context())
		f.must(err)
		if n == 0 {
			break
		}
		most, bulk = max(most, n), bulk+relay.BulkLanes(r)
	}
	if most > 3 || bulk < 5 {
		t.Errorf("a step had %d events, want 3 at most; %d of them left the lane to be read in bulk, want most", most, bulk)
	}
	log := f.to.events()
	for i, e := range log {
		want := 7900
		switch i {
		case 17, 18:
			want = 9000
		case 25:
			want = 3_000_000
		case 30:
			want = 10
		}
		if strings.TrimSpace(string(e.Payload)) != fmt.Sprint(i) || len(e.Payload) != want || (len(e.Headers["h"]) != 0) != (i == 30) {
			t.Fatalf("event %d is %.20q of %d bytes, with %d bytes of headers", i, e.Payload, len(e.Payload), len(e.Headers["h"]))
		}
	}
	if len(log) != 40 {
		t.Errorf("%d events are published, want 40", len(log))
	}
	drained(t, f.db)
}

// TestP3BulkLocks: who holds the lanes' locks may wait between the two pipelines of a claim; when its connection is cut there,
// nothing has happened. The second pipeline never goes to another connection, which has no locks.
func TestP3BulkLocks(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]pgtest.Action{"cut before": pgtest.CutBefore, "reply dropped": pgtest.DropReply, "cut after": pgtest.CutAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			fill(t, db, 500, 30)
			proxy := pgtest.NewProxy(t, db.URL)
			trap := proxy.On(statement("read"), 0, action)
			r, err := relay.New(poolAt(t, proxy.URL()), to, config(func(c *relay.Config) { c.Pumps, c.ClaimEvents = 1, 3*relay.Lanes }))
			if err != nil {
				t.Fatal(err)
			}
			relay.SetBulkFrom(r, 1)
			stop := running(t, r)
			<-trap.Fired()
			trap.Release()
			drained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			numbered(t, to.events())
			inOrder(t, to.events(), 500)
		})
	}
}

// TestP3BulkRows: how many rows are asked for follows from the size of the last ones, up and down.
func TestP3BulkRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ perLane, bytes, size, want int }{
		{500, 1 << 20, 0, 500},
		{500, 1 << 20, 1024, 500},
		{500, 1 << 20, 8500, 123 + 30 + 1},
		{500, 1 << 20, 1 << 21, 1},
	} {
		if n := relay.RowsFor(c.perLane, c.bytes, c.size); n != c.want {
			t.Errorf("%d rows of %d bytes, want %d", n, c.size, c.want)
		}
	}
}
