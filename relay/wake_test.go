package relay_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/relay"
)

// TestP7Wake: a relay whose next probe is an hour away finds new events at once when it is woken.
func TestP7Wake(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	r := newRelay(t, db, to, config(func(c *relay.Config) { c.ProbeAwake, c.ProbeIdle = time.Hour, time.Hour }))
	stop := startRelay(t, r)
	for range 3 { // the claims that begin each lane may find the first round
		fill(t, db, 500, 500)
		r.Wake()
		awaitDrained(t, db)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := to.count(); n != 1500 {
		t.Errorf("%d events published", n)
	}
}

// TestP7WakeDuringClaim: an event becomes visible after a claim has read, and before its lanes are given back. After a
// Wake it does not wait for the next probe.
func TestP7WakeDuringClaim(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	ready, err := d.StepAfter(t.Context(), func() {})
	if err != nil || len(ready) > 0 {
		t.Fatalf("lanes %v are ready after a claim that found nothing: %v", ready, err)
	}
	ready, err = d.StepAfter(t.Context(), d.Woken)
	if err != nil || len(ready) != relay.Lanes {
		t.Fatalf("%d lanes are ready again after a wake: %v", len(ready), err)
	}
}

// TestP7WakeBeforeFloors: after a Wake that comes before the relay has floors, events do not wait for the next probe.
func TestP7WakeBeforeFloors(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	d, err := relay.Drive(t.Context(), newRelay(t, db, &memory{}, config()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	d.InSlices(1<<18, 1<<16)
	fill(t, db, 10, 10)
	if found, err := d.Probe(t.Context()); err != nil || len(found) > 0 || d.Told() {
		t.Fatalf("a probe without floors found %v: %v", found, err)
	}
	for range 3 {
		if err := d.FloorStep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !d.Told() {
		t.Error("no second probe was requested")
	}
	if d.SleepEnds() {
		t.Error("what the relay tells itself ends its sleep")
	}
	if found, err := d.Probe(t.Context()); err != nil || len(found) == 0 {
		t.Errorf("a probe found %v: %v", found, err)
	}
}

// TestP5DeadlinePassed: a lane that a pump skipped because its heartbeat was late is worked on after the next
// heartbeat, if no other relay took it.
func TestP5DeadlinePassed(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	d.Kicked()
	d.Expire()
	if err := d.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !d.Kicked() {
		t.Error("no pump was told")
	}
}

func newDriver(t *testing.T) *relay.Driver {
	t.Helper()
	d, err := relay.Drive(t.Context(), newRelay(t, outboxDB(t), &memory{},
		config(func(c *relay.Config) { c.Lease = time.Hour })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}
