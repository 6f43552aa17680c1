package relay_test

import (
	"testing"
	"time"

	"github.com/effectonce/effectonce/relay"
)

// TestP7Wake: a relay that would look again in an hour finds at once what it is told of.
func TestP7Wake(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	r := newRelay(t, db, to, config(func(c *relay.Config) { c.ProbeAwake, c.ProbeIdle = time.Hour, time.Hour }))
	stop := running(t, r)
	for range 3 { // the first round may still be found by the claims that begin each lane
		fill(t, db, 500, 500)
		r.Wake()
		drained(t, db)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := to.count(); n != 1500 {
		t.Errorf("%d events published", n)
	}
}

// TestP7WakeDuringClaim: an event that becomes visible after a claim has looked, and before the claim's lanes are
// given back, is not left to the next probe when somebody told of it.
func TestP7WakeDuringClaim(t *testing.T) {
	t.Parallel()
	d := driver(t)
	ready, err := d.StepAfter(t.Context(), func() {})
	if err != nil || len(ready) > 0 {
		t.Fatalf("lanes %v are ready after a claim that found nothing: %v", ready, err)
	}
	ready, err = d.StepAfter(t.Context(), d.Woken)
	if err != nil || len(ready) != relay.Lanes {
		t.Fatalf("%d lanes are looked at again after a wake: %v", len(ready), err)
	}
}

// TestP7WakeBeforeFloors: a wake that comes before the relay knows how far its floors rise is not left to the next
// probe.
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
	if found, err := d.Look(t.Context()); err != nil || len(found) > 0 || d.Told() {
		t.Fatalf("a look before there are floors finds %v: %v", found, err)
	}
	for range 3 {
		if err := d.FloorStep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !d.Told() {
		t.Error("nobody looks again")
	}
	if found, err := d.Look(t.Context()); err != nil || len(found) == 0 {
		t.Errorf("a look finds %v: %v", found, err)
	}
}

// TestP5DeadlinePassed: a lane that a pump skipped because its heartbeat was late is taken up by the next heartbeat,
// though nobody else took it meanwhile.
func TestP5DeadlinePassed(t *testing.T) {
	t.Parallel()
	d := driver(t)
	d.Kicked()
	d.Expire()
	if err := d.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !d.Kicked() {
		t.Error("no pump was told")
	}
}

func driver(t *testing.T) *relay.Driver {
	t.Helper()
	d, err := relay.Drive(t.Context(), newRelay(t, outboxDB(t), &memory{},
		config(func(c *relay.Config) { c.Lease = time.Hour })))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}
