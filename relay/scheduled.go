package relay

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// dueShare is how many times as long as a look took the next one for scheduled events waits. There is no floor for
// them: the rows that were moved while an old transaction is open are read again by each look, and must not slow down
// the others.
const dueShare = 20

// duePause is the pause after a look that took so long. A process or a server that stood still is no old transaction:
// what is due waits for a lease at most.
func duePause(took, lease time.Duration) time.Duration { return min(dueShare*took, lease) }

// queueDue adds to a claim the move of what has come due in the lanes that may have some (P8): out of the table of
// the future, behind everything that the lane has. What it moves the same claim may take.
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
	b.Queue(r.sql(sql.MoveDue), lanes, fences, r.owner, most, bytes, eventOverhead).Query(func(rows pgx.Rows) error {
		var lane int16
		var n int64
		_, err := pgx.ForEachRow(rows, []any{&lane, &n}, func() error { moved[lane] = n; return nil })
		return err
	})
}

// movedDue notes after the claim's commit what queueDue has done. A lane that had some may have more.
func (r *Relay) movedDue(grants []lanes.Grant, moved map[int16]int64) {
	var all int64
	for _, g := range grants {
		if g.Due {
			r.lanes.MovedDue(g.Lane, g.Fence, moved[g.Lane] > 0)
			all += moved[g.Lane]
		}
	}
	if all > 0 && r.cfg.Observer.Due != nil {
		r.cfg.Observer.Due(int(all))
	}
}

// lookDue asks which lanes have something that is due.
func (r *Relay) lookDue(b *pgx.Batch, due *[]int16) {
	lanes := r.lanes.Certain()
	if len(lanes) == 0 {
		return
	}
	b.Queue(r.sql(sql.Due), lanes).Query(func(rows pgx.Rows) error {
		return eachLane(rows, func(lane int16) { *due = append(*due, lane) })
	})
}
