package soak

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/effectonce/effectonce/verify/roles"
)

// stallLimit bounds the time without progress after the last fault (I8); how fast a backlog shrinks depends on the
// machine. A relay waits for at most its lease (3 s), a probe's backoff (some seconds) and a topic's next check (2 s);
// a worker for its session (6 s), a rebalance (8 s) and the longest series of attempts of an event (3 s), which the
// operator may have to release more than once; proxies delay bytes by up to 4 s. All of these may add up.
const stallLimit = 90 * time.Second

// drainLimit bounds the whole time after the last fault.
const drainLimit = 6 * time.Minute

// stopLimit bounds a graceful stop: a drain of 5 s, and more on a busy machine.
const stopLimit = 30 * time.Second

// drain stops the producers, ends the kills, waits until nothing is left, and stops the other processes. It returns the
// failures.
func (x *testbed) drain() (failures []string) {
	for _, p := range x.proxies.all {
		p.Toxics.ResetToxics(context.Background())
	}
	for _, name := range x.supervisor.names("") {
		x.supervisor.signal(name, syscall.SIGCONT)
	}
	x.supervisor.makeSafe()
	began := time.Now()
	for _, p := range producers {
		x.supervisor.want(p, false)
	}
	for _, p := range producers {
		if err := x.supervisor.awaitExit(p, stopLimit); err != nil {
			failures = append(failures, err.Error())
		}
	}
	if x.tenants != nil {
		x.tenants.endAppending()
	}
	const every = 500 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	leftover, drainedAfter, least, progress := []string(nil), time.Duration(0), int64(math.MaxInt64), began
	// For longer than a lease, for what the last dead relay had is overdue only then.
	for quiet := 0; quiet <= int(roles.Lease/every)+1; <-tick.C {
		_, _ = x.discardSome(time.Now().Add(2 * time.Second)) // left reports the remaining ones
		var sum int64
		if leftover, sum = x.leftover(); len(leftover) > 0 {
			quiet = 0
		} else if quiet++; quiet == 1 {
			drainedAfter = time.Since(began)
		}
		if sum < least {
			least, progress = sum, time.Now()
		}
		if time.Since(progress) > stallLimit || time.Since(began) > drainLimit {
			break
		}
	}
	if len(leftover) > 0 {
		failures = append(failures, fmt.Sprintf("left %v after the last fault, %v after the last progress: %s",
			time.Since(began).Round(time.Second), time.Since(progress).Round(time.Second),
			strings.Join(leftover, "; ")))
	} else {
		x.t.Logf("nothing was left %v after the last fault", drainedAfter.Round(100*time.Millisecond))
	}
	if x.tenants != nil {
		x.tenants.endConsuming()
	}
	// Workers first, so that they commit their offsets.
	others := slices.Concat(workers, []string{spareWorker, operatorProcess, maintainer}, relays, x.tenantRelays())
	for _, name := range others {
		x.supervisor.want(name, false)
	}
	for _, name := range others {
		if err := x.supervisor.awaitExit(name, stopLimit); err != nil {
			failures = append(failures, err.Error())
		}
	}
	return failures
}

// leftoverQueries are queries that must return no row in the end.
var leftoverQueries = map[string]string{
	"events in the outbox":          "select 1 from outbox_event",
	"scheduled events that are due": "select 1 from outbox_scheduled where due < now()",
	"scheduled events":              "select 1 from outbox_scheduled where due < now() + interval '1 hour'",
	"open claims":                   "select 1 from outbox_claim",
	"held events":                   "select 1 from outbox_held",
	"parked events":                 "select 1 from outbox_parked",
	"parked keys":                   "select 1 from outbox_parked_key",
	"events parked in the inbox":    "select 1 from inbox_parked",
	"keys parked in the inbox":      "select 1 from inbox_parked_key",
	"halted partitions":             "select 1 from inbox_progress where halted_at is not null",
	"partitions with offsets that are not accounted for": "select 1 from inbox_progress where from_offset - " +
		"began_offset <> accounted",
	"overdue leases": `select 1 from outbox_lane l where l.owner is not null and greatest(l.lease_until,
		(select m.lease_until from relay_member m where m.owner = l.owner)) < clock_timestamp()`,
	"lanes without an owner": "select 1 from outbox_lane where owner is null",
	"prepared transactions":  "select 1 from pg_prepared_xacts",
	"sessions idle in transaction": "select 1 from pg_stat_activity where state like 'idle in transaction%' and " +
		"xact_start < now() - interval '15 s'",
}

// leftover returns the rows of questions and the lag, as texts and in all.
func (x *testbed) leftover() (leftover []string, sum int64) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	queries := maps.Clone(leftoverQueries)
	if x.tenants != nil {
		maps.Copy(queries, tenantsLeftover)
	}
	for what, q := range queries {
		var n int64
		if err := x.admin.QueryRow(ctx, "select count(*) from ("+q+") q").Scan(&n); err != nil {
			return []string{err.Error()}, math.MaxInt64
		} else if n > 0 {
			leftover = append(leftover, fmt.Sprintf("%d %s", n, what))
			sum += n
		}
	}
	reads := map[string][]string{roles.Consumer: slices.Collect(maps.Keys(topics))}
	if x.tenants != nil {
		reads[tenantsByID], reads[tenantsByMark] = []string{topicTenants}, []string{topicTenants}
	}
	for group, names := range reads {
		for _, topic := range names {
			if lag, err := x.lag(group, topic); err != nil {
				return []string{err.Error()}, math.MaxInt64
			} else if lag > 0 {
				leftover = append(leftover, fmt.Sprintf("%d records of %s that %s has not committed", lag, topic,
					group))
				sum += lag
			}
		}
	}
	slices.Sort(leftover)
	return leftover, sum
}
