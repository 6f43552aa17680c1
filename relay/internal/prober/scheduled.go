package prober

import (
	"context"
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

// queueProbeDue asks which lanes have due events.
func (p *Prober) queueProbeDue(b *pgx.Batch, due *[]int16) {
	lanes := p.Lanes.AskDue(time.Now())
	if len(lanes) == 0 {
		return
	}
	b.Queue(p.SQL(sql.Due), lanes).Query(pg.ReadLanes(due))
}

// While every lane's events come from the WAL, the prober runs rarely: for due, released or paused events. Changes of
// these are in the WAL too, and wake it.

// restFor returns how long the prober rests.
func (p *Prober) restFor() time.Duration {
	wait := p.Lease / 3
	if !p.DueAt.IsZero() {
		wait = min(wait, time.Until(p.DueAt))
	}
	return max(wait, time.Millisecond)
}

// queueNextDue asks when the next event is due, by the clock of this machine: a probe then finds it, or asks again.
func (p *Prober) queueNextDue(b *pgx.Batch, now time.Time) {
	p.DueAt = time.Time{}
	b.Queue(p.SQL(sql.NextDue)).QueryRow(func(row pgx.Row) error {
		var in *float64
		if err := row.Scan(&in); err != nil || in == nil {
			return err
		}
		p.DueAt = now.Add(max(time.Duration(*in*float64(time.Second)), time.Millisecond))
		return nil
	})
}

// moveStreamed moves due events of lanes whose feed is the WAL: they come back from there. It returns the other
// lanes.
func (p *Prober) moveStreamed(ctx context.Context, s *pg.Session, due []int16) (others []int16, err error) {
	mine, fences := p.Lanes.FromWAL()
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
	err = p.Cycle.MoveDue(ctx, s, grants)
	if len(grants) > 1 && pgerr.Answered(err) {
		for i := range grants {
			if err = p.Cycle.MoveDue(ctx, s, grants[i:i+1]); err != nil {
				break
			}
		}
	}
	return others, err
}
