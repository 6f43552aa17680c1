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

// sightings counts, by kind, how often a fault took effect and how often the processes that it must not affect went on
// meanwhile. Simultaneous faults of other tracks may stop them at times; if they never went on it is a violation.
type sightings struct {
	mu         sync.Mutex
	took, went map[string]int
}

// enough faults of a kind without a sighting are a violation.
const enough = 3

func (x *scene) took(kind string) {
	x.seen.mu.Lock()
	defer x.seen.mu.Unlock()
	x.seen.took[kind]++
}

func (x *scene) went(kind string) {
	x.seen.mu.Lock()
	defer x.seen.mu.Unlock()
	x.seen.went[kind]++
}

// demanding are the kinds that check their effect.
func demanding() map[string]bool {
	all := map[string]bool{}
	for _, k := range kinds() {
		all[k.name] = k.demands
	}
	return all
}

// unmetDemands lists the kinds that could not be made or had no effect. For a run of a single kind it also checks that
// others went on; in other runs a broker that is away or a server that restarts could have stopped them.
func (x *scene) unmetDemands(done, vain map[string]int) (unwell []string) {
	for _, kind := range slices.Sorted(maps.Keys(vain)) {
		if vain[kind] >= enough && done[kind] == 0 {
			unwell = append(unwell, fmt.Sprintf("%s was tried %d times and never made", kind, vain[kind]))
		}
	}
	looks := demanding()
	for _, kind := range slices.Sorted(maps.Keys(done)) {
		made, took, went := done[kind], x.seen.took[kind], x.seen.went[kind]
		if looks[kind] && made >= enough && took == 0 {
			unwell = append(unwell, fmt.Sprintf("%s was made %d times and never took effect", kind, made))
		}
		if len(done) == 1 && took >= enough && went == 0 {
			unwell = append(unwell, fmt.Sprintf("%s took effect %d times, and the others never went on", kind, took))
		}
	}
	return unwell
}

// mark returns the end of the table of effects, in pages.
func (x *scene) mark() (pages int64) {
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
func (x *scene) noteProgress(f fault, since int64) {
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
		x.went(f.kind)
	}
}

// goesWithin bounds the wait of an event in a healthy relay's lane: a lease, and the time to take the lane over.
const goesWithin = 8 * time.Second

// outboxMark is the id of the latest event at some time.
type outboxMark struct{ id atomic.Int64 }

func (m *outboxMark) set(x *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	var id int64
	if err := x.admin.QueryRow(ctx, "select coalesce(max(id), 0) from outbox_event").Scan(&id); err == nil {
		m.id.Store(id)
	}
}

// published notes whether all events up to the mark have left the outbox.
func (x *scene) published(f fault, at *outboxMark) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	var left, newer int64
	err := x.admin.QueryRow(ctx, "select count(*) filter (where id <= $1), count(*) filter (where id > $1) from "+
		"outbox_event where topic not like $2", at.id.Load(), refusedTopics+"%").Scan(&left, &newer)
	x.t.Logf("%s of %s: %d events are in the outbox for more than %v, %d for less (%v)", f.kind, f.target, left,
		goesWithin, newer, err)
	if err == nil && at.id.Load() > 0 && left == 0 {
		x.went(f.kind)
	}
}
