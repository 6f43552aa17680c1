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

// sightings count, by kind, how often a fault took effect and how often that which it must not touch went on meanwhile.
// Faults of other tracks are made at the same time, so that it may stand for once; when it never goes on it is a
// violation.
type sightings struct {
	mu         sync.Mutex
	took, went map[string]int
}

// enough is how many of a kind must have been made, or have taken effect, before the lack of a sighting says something.
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

// demanding are the kinds that look at what they did.
func demanding() map[string]bool {
	all := map[string]bool{}
	for _, k := range kinds() {
		all[k.name] = k.demands
	}
	return all
}

// unmetDemands lists the kinds that could not be made or did nothing, and those that stopped what they must not touch.
// The last is asked of a kind that is made alone: among others, a broker that is away or a server that restarts stops
// the same things.
func (x *scene) unmetDemands(done, vain map[string]int) (unwell []string) {
	for _, kind := range slices.Sorted(maps.Keys(vain)) {
		if vain[kind] >= enough && done[kind] == 0 {
			unwell = append(unwell, fmt.Sprintf("%s was begun %d times and never made", kind, vain[kind]))
		}
	}
	looks := demanding()
	for _, kind := range slices.Sorted(maps.Keys(done)) {
		made, took, went := done[kind], x.seen.took[kind], x.seen.went[kind]
		if looks[kind] && made >= enough && took == 0 {
			unwell = append(unwell, fmt.Sprintf("%s was made %d times and never took effect", kind, made))
		}
		if len(done) == 1 && took >= enough && went == 0 {
			unwell = append(unwell, fmt.Sprintf("%s took effect %d times, and what it must not touch never went on",
				kind, took))
		}
	}
	return unwell
}

// mark is where the table of effects ends now: rows behind it are newer.
func (x *scene) mark() (pages int64) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	if err := x.admin.QueryRow(ctx,
		"select pg_relation_size('history_effect') / current_setting('block_size')::int").Scan(&pages); err != nil {
		return -1
	}
	return pages
}

// noteProgress notes that a third of the partitions of the permanent topics had effects since the mark. When no
// other fault is made it is nearly all of them. After a death all partitions of a worker run their events one at a time
// and alone, and wait together for one that hangs.
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

// goesWithin is how long an event of a healthy relay's may wait at most: a lease, and the steps until its lane is
// taken.
const goesWithin = 8 * time.Second

// outboxMark is the number of the latest event at some time.
type outboxMark struct{ id atomic.Int64 }

func (m *outboxMark) set(x *scene) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	var id int64
	if err := x.admin.QueryRow(ctx, "select coalesce(max(id), 0) from outbox_event").Scan(&id); err == nil {
		m.id.Store(id)
	}
}

// published notes that what was there at the mark has left the outbox.
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
