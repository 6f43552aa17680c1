package main

import (
	"flag"
	"time"
)

// live are the settings of the cases that measure for a time instead of a number of events.
type live struct {
	latency     time.Duration // a turn of the latency case
	tax         time.Duration // an alternative of the append case
	relayEvents int           // a drain of the relays case
	relayKills  int           // of the relays case
	lease       time.Duration // of the relays that are killed; 0: the default
	idleAfter   time.Duration // of the idle relay; 0: the default
	idle        time.Duration // how long its cost is measured
}

func (l *live) flags(f *flag.FlagSet) {
	f.DurationVar(&l.latency, "latency", 7*time.Second, "how long a turn of the latency case measures, after its own "+
		"warm-up")
	f.DurationVar(&l.tax, "append", 3*time.Second, "how long each alternative of the append case works in a turn")
	f.IntVar(&l.relayEvents, "relays-events", 300_000, "events that the relays of the relays case share in a drain")
	f.IntVar(&l.relayKills, "relays-kills", 2, "how often the relays case kills a relay, which takes a lease each; "+
		"0: never")
	f.DurationVar(&l.idle, "idle", 20*time.Second, "how long the cost of an idle relay is measured")
}

// shrink lowers the settings that no flag sets.
func (l *live) shrink(set map[string]bool) {
	for name, v := range map[string]struct {
		length *time.Duration
		quick  time.Duration
	}{
		"latency": {&l.latency, time.Second}, "append": {&l.tax, 200 * time.Millisecond},
		"idle": {&l.idle, time.Second},
	} {
		if !set[name] {
			*v.length = v.quick
		}
	}
	if !set["relays-events"] {
		l.relayEvents = 5000
	}
	if !set["relays-kills"] {
		l.relayKills = 1
	}
	l.lease, l.idleAfter = 2*time.Second, time.Second
}

func (l *live) valid() bool {
	return l.latency > 0 && l.tax > 0 && l.idle > 0 && l.relayEvents > 0 &&
		l.relayKills >= 0
}
