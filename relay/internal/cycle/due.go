package cycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// queueDue adds to a claim the move of due events in the lanes that may have some (P8): from outbox_scheduled, behind
// all events of the lane. The same claim may take them.
func (r *Cycle) queueDue(b *pgx.Batch, grants []lanes.Grant, most, bytes int, moved map[int16]int64) {
	var set sql.Fenced
	for _, g := range grants {
		if g.Due {
			set.Add(g.Lane, g.Fence, 0)
		}
	}
	if len(set.Lanes) == 0 {
		return
	}
	b.Queue(r.SQL(sql.MoveDue), set.Lanes, set.Fences, r.Owner, most, bytes, EventOverhead).Query(pg.ReadByLane(moved))
}

// movedDue records after the claim's commit what queueDue has moved. A lane that had due events may have more.
func (r *Cycle) movedDue(grants []lanes.Grant, moved map[int16]int64) {
	var all int64
	for _, g := range grants {
		if g.Due {
			r.Lanes.MovedDue(g.Lane, g.Fence, moved[g.Lane] > 0)
			r.Worked(g.Lane, true)
			all += moved[g.Lane]
		}
	}
	if all > 0 && r.Observer.Due != nil {
		r.Observer.Due(int(all))
	}
}

// MoveDue moves due events in a transaction of its own. That a lane's are refused is its trouble and no error.
func (r *Cycle) MoveDue(ctx context.Context, s *pg.Session, grants []lanes.Grant) error {
	var set sql.Fenced
	for _, g := range grants {
		set.Add(g.Lane, g.Fence, 0)
	}
	most, bytes, moved := max(r.MostEvents/len(grants), 1), max(r.MostBytes/len(grants), 1), map[int16]int64{}
	err := s.Send(ctx, pg.Transaction(r.Lease, pg.Disk, func(b *pgx.Batch) {
		b.Queue(r.SQL(sql.Lock), set.Lanes, set.Fences, r.Owner)
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
		r.Signals.Probe() // there may be more than a claim's limit
	}
	return nil
}

// errTakenAway: an event that was scheduled would be in no table.
var errTakenAway = errors.New("a trigger of outbox_event takes them away")

// dueRefused reports whether the server refused the work on a lane that includes the move of its due events. The lane
// goes on without them; if they were not the cause, the next claim is refused too.
func (r *Cycle) dueRefused(grants []lanes.Grant, err error) bool {
	if len(grants) != 1 || !grants[0].Due || !pgerr.Answered(err) || late(err) {
		return false
	}
	if pgerr.Is(err, pgerr.DivisionByZero) && !pgerr.Within(err) {
		err = errTakenAway
	}
	r.Lanes.DueRefused(grants[0].Lane, grants[0].Fence, time.Now())
	r.Refuse(grants[0].Lane, fmt.Errorf("with its due events: %w", err), true)
	return true
}
