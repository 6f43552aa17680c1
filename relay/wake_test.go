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
