package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// dueShare is how many times as long as a probe took the pause before the next one for scheduled events is. They have
// no floor: rows that were moved during a long transaction are read again by each probe, and must not slow down the
// others.
const dueShare = 20

// duePause is the pause after a probe of that duration. A process or a server may have been suspended, so due events
// wait for at most a lease.
func duePause(took, lease time.Duration) time.Duration { return min(dueShare*took, lease) }

// queueDue adds to a claim the move of due events in the lanes that may have some (P8): from outbox_scheduled, behind
// all events of the lane. The same claim may take them.
func (r *Relay) queueDue(b *pgx.Batch, grants []lanes.Grant, most, bytes int, moved map[int16]int64) {
	var lanes []int16
	var fences []int64
	for _, g := range grants {
		if g.Due {
			lanes, fences = append(lanes, g.Lane), append(fences, g.Fence)
		}
	}
	if len(lanes) == 0 {
		return
	}
	b.Queue(r.sql(sql.MoveDue), lanes, fences, r.owner, most, bytes, eventOverhead).Query(readByLane(moved))
}

// movedDue records after the claim's commit what queueDue has moved. A lane that had due events may have more.
func (r *Relay) movedDue(grants []lanes.Grant, moved map[int16]int64) {
	var all int64
	for _, g := range grants {
		if g.Due {
			r.lanes.MovedDue(g.Lane, g.Fence, moved[g.Lane] > 0)
			r.worked(g.Lane, true)
			all += moved[g.Lane]
		}
	}
	if all > 0 && r.cfg.Observer.Due != nil {
		r.cfg.Observer.Due(int(all))
	}
}

// queueProbeDue asks which lanes have due events.
func (r *Relay) queueProbeDue(b *pgx.Batch, due *[]int16) {
	lanes := r.lanes.AskDue(time.Now())
	if len(lanes) == 0 {
		return
	}
	b.Queue(r.sql(sql.Due), lanes).Query(readLanes(due))
}

// While every lane's events come from the WAL, the prober runs rarely: for due, released or paused events. Changes of
// these are in the WAL too, and wake it.

// restFor returns how long the prober rests.
func (r *Relay) restFor() time.Duration {
	wait := r.cfg.Lease / 3
	if !r.dueAt.IsZero() {
		wait = min(wait, time.Until(r.dueAt))
	}
	return max(wait, time.Millisecond)
}

// queueNextDue asks when the next event is due, by the clock of this machine: a probe then finds it, or asks again.
func (r *Relay) queueNextDue(b *pgx.Batch, now time.Time) {
	r.dueAt = time.Time{}
	b.Queue(r.sql(sql.NextDue)).QueryRow(func(row pgx.Row) error {
		var in *float64
		if err := row.Scan(&in); err != nil || in == nil {
			return err
		}
		r.dueAt = now.Add(max(time.Duration(*in*float64(time.Second)), time.Millisecond))
		return nil
	})
}

// moveStreamed moves due events of lanes whose source is the WAL: they come back from there. It returns the other
// lanes.
func (r *Relay) moveStreamed(ctx context.Context, s *session, due []int16) (others []int16, err error) {
	mine, fences := r.lanes.FromWAL()
	var grants []lanes.Grant
	for _, lane := range due {
		i := slices.Index(mine, lane)
		if i < 0 {
			others = append(others, lane)
			continue
		}
		grants = append(grants, lanes.Grant{Lane: lane, Fence: fences[i], Due: true})
	}
	if len(grants) == 0 {
		return others, nil
	}
	err = r.moveApart(ctx, s, grants)
	if len(grants) > 1 && pgerr.Answered(err) {
		for i := range grants {
			if err = r.moveApart(ctx, s, grants[i:i+1]); err != nil {
				break
			}
		}
	}
	return others, err
}

// moveApart moves due events in a transaction of its own. That a lane's are refused is its trouble and no error.
func (r *Relay) moveApart(ctx context.Context, s *session, grants []lanes.Grant) error {
	var set laneKeys
	for _, g := range grants {
		set.lanes, set.fences = append(set.lanes, g.Lane), append(set.fences, g.Fence)
	}
	most, bytes, moved := max(r.cfg.ClaimEvents/len(grants), 1), max(r.cfg.ClaimBytes/len(grants), 1), map[int16]int64{}
	err := s.Send(ctx, pg.Transaction(r.cfg.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.Lock), set.lanes, set.fences, r.owner)
		r.queueDue(b, grants, most, bytes, moved)
	}))
	if r.dueRefused(grants, err) {
		return nil
	}
	if err != nil {
		return err
	}
	r.movedDue(grants, moved)
	if len(moved) > 0 {
		r.dueNext = time.Time{}
		r.requestProbe() // there may be more than a claim's limit
	}
	return nil
}

// errTakenAway: an event that was scheduled would be in no table.
var errTakenAway = errors.New("a trigger of outbox_event takes them away")

// dueRefused reports whether the server refused the work on a lane that includes the move of its due events. The lane
// goes on without them; if they were not the cause, the next claim is refused too.
func (r *Relay) dueRefused(grants []lanes.Grant, err error) bool {
	if len(grants) != 1 || !grants[0].Due || !pgerr.Answered(err) || late(err) {
		return false
	}
	if pgerr.Is(err, pgerr.DivisionByZero) && !pgerr.Within(err) {
		err = errTakenAway
	}
	r.lanes.DueRefused(grants[0].Lane, grants[0].Fence, time.Now())
	r.refuse(grants[0].Lane, fmt.Errorf("with its due events: %w", err), true)
	return true
}
