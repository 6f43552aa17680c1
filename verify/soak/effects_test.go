package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// effectCounts counts, by kind, how often a fault took effect and how often the processes that it must not affect
// continued meanwhile. Simultaneous faults of other tracks may stop them at times; if they never continued it is a
// violation.
type effectCounts struct {
	mu                    sync.Mutex
	tookEffect, continued map[string]int
}

// minFaults faults of a kind without a sighting are a violation.
const minFaults = 3

func (x *testbed) tookEffect(kind string) {
	x.observed.mu.Lock()
	defer x.observed.mu.Unlock()
	x.observed.tookEffect[kind]++
}

func (x *testbed) continued(kind string) {
	x.observed.mu.Lock()
	defer x.observed.mu.Unlock()
	x.observed.continued[kind]++
}

// kindsWithCheck are the kinds that check their effect.
func kindsWithCheck() map[string]bool {
	all := map[string]bool{}
	for _, k := range kinds() {
		all[k.name] = k.checksEffect
	}
	return all
}

// ineffectiveKinds lists the kinds that could not be made or had no effect. For a run of a single kind it also checks
// that others continued; in other runs a missing broker or a restarting server could have stopped them.
func (x *testbed) ineffectiveKinds(done, failedBegins map[string]int) (failures []string) {
	for _, kind := range slices.Sorted(maps.Keys(failedBegins)) {
		if failedBegins[kind] >= minFaults && done[kind] == 0 {
			failures = append(failures, fmt.Sprintf("%s was tried %d times and never made", kind, failedBegins[kind]))
		}
	}
	checking := kindsWithCheck()
	for _, kind := range slices.Sorted(maps.Keys(done)) {
		made, tookEffect, continued := done[kind], x.observed.tookEffect[kind], x.observed.continued[kind]
		if checking[kind] && made >= minFaults && tookEffect == 0 {
			failures = append(failures, fmt.Sprintf("%s was made %d times and never took effect", kind, made))
		}
		if len(done) == 1 && tookEffect >= minFaults && continued == 0 {
			failures = append(failures,
				fmt.Sprintf("%s took effect %d times, and the others never went on", kind, tookEffect))
		}
	}
	return failures
}

// mark returns the end of the table of effects, in pages.
func (x *testbed) mark() (pages int64) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	if err := x.admin.QueryRow(ctx,
		"select pg_relation_size('history_effect') / current_setting('block_size')::int").Scan(&pages); err != nil {
		return -1
	}
	return pages
}

// noteProgress notes whether a third of the partitions of the permanent topics had effects since the mark. Without
// other faults nearly all have. After a crash a worker runs the events of all its partitions one by one, so all wait
// for one that hangs.
func (x *testbed) noteProgress(f fault, since int64) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	var partitions, effects, all int
	for name, n := range topics {
		if name != topicDoomed {
			all += n
		}
	}
	err := x.admin.QueryRow(ctx, `select count(distinct (topic, record_partition)), count(*) from history_effect
		where ctid >= format('(%s,0)', $1::bigint)::tid and topic <> $2`, since, topicDoomed).Scan(&partitions,
		&effects)
	x.t.Logf("%s of %s: %d effects in %d of %d partitions meanwhile (%v)", f.kind, f.target, effects, partitions, all,
		err)
	if err == nil && since >= 0 && partitions >= all/3 {
		x.continued(f.kind)
	}
}

// publishLimit bounds the wait of an event in a healthy relay's lane: a lease, and the time to take the lane over.
const publishLimit = 8 * time.Second

// outboxMark is the id of the latest event at some time.
type outboxMark struct{ id atomic.Int64 }

func (m *outboxMark) set(x *testbed) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	var id int64
	if err := x.admin.QueryRow(ctx, "select coalesce(max(id), 0) from outbox_event").Scan(&id); err == nil {
		m.id.Store(id)
	}
}

// published notes whether all events up to the mark have left the outbox.
func (x *testbed) published(f fault, at *outboxMark) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	var leftover, newer int64
	err := x.admin.QueryRow(ctx, "select count(*) filter (where id <= $1), count(*) filter (where id > $1) from "+
		"outbox_event where topic not like $2", at.id.Load(), refusedTopics+"%").Scan(&leftover, &newer)
	x.t.Logf("%s of %s: %d events are in the outbox for more than %v, %d for less (%v)", f.kind, f.target, leftover,
		publishLimit, newer, err)
	if err == nil && at.id.Load() > 0 && leftover == 0 {
		x.continued(f.kind)
	}
}
