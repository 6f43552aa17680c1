// Package prober finds the lanes that have events, and moves what comes due.
package prober

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/keeper"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

// Prober probes for a relay.
type Prober struct {
	*start.Start
	Cycle                  *cycle.Cycle
	Keeper                 *keeper.Keeper
	Part                   *wal.Part
	Awake, Idle, IdleAfter time.Duration
	Sleeps                 bool // the relay may sleep

	DueAt   time.Time // while it rests or is about to sleep: when the next event is due
	dueNext time.Time // no probe for scheduled events before it
	tired   bool      // no event has come for IdleAfter, and the relay may sleep
}

// Run checks all of the relay's lanes for events, often while there are some and rarely when there are none, and wakes
// the pumps of lanes with events. It also notices relays that start and stop, and free lanes, long before the next
// heartbeat. It calls idle when the relay may sleep.
func (p *Prober) Run(ctx context.Context, idle func()) {
	s := p.Session("prober")
	defer s.Close()
	pause, active, probed := outage.NewBackOff(), time.Now(), time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Signals.Wakes:
			p.Lanes.Woken()
		case <-p.Signals.Probes:
			p.Lanes.Woken()
		case <-timer.C:
		}
		ask, floors, ids := p.Lanes.ToProbe()
		if len(ask) == 0 && time.Since(probed) < p.Idle {
			timer.Reset(p.Awake) // all lanes are busy: probe for other relays only
			continue
		}
		probed = time.Now()
		p.tired = p.Sleeps && probed.Sub(active) > p.IdleAfter
		found, err := p.Probe(ctx, s, ask, floors, ids)
		p.Postgres.Report(s.Name, err, s.Heard())
		if found {
			active = time.Now()
		}
		wait := p.Awake
		switch {
		case err != nil:
			wait = pause.NextBackOff()
		case p.tired && !found && p.maySleep(len(ask)):
			idle()
			return
		case p.Part.Rests(p.Lanes):
			wait = p.restFor()
			pause.Reset()
		case time.Since(active) > p.IdleAfter:
			wait = p.Idle
			pause.Reset()
		default:
			pause.Reset()
		}
		timer.Reset(wait)
	}
}

// Probe runs one probe. It reports whether events wait in the relay's lanes.
func (p *Prober) Probe(ctx context.Context, s *pg.Session, ask []int16, floors []int64, ids string) (found bool,
	err error,
) {
	now := time.Now()
	working := p.Lanes.Working()
	var ready, releasing, due []int16
	var paused []string
	parked := p.Lanes.Parked()
	var free bool
	var members int64
	var b pgx.Batch
	b.Queue(sql.ProbeSettings)
	b.Queue(p.SQL(sql.Probe), ask, sql.Interval(p.Lease), floors, ids, parked).QueryRow(func(row pgx.Row) error {
		return row.Scan(&ready, &free, &members, &releasing)
	})
	soon := !now.Before(p.dueNext)
	if soon {
		p.queueProbeDue(&b, &due)
	}
	b.Queue(p.SQL(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&paused) })
	if p.Part.Rests(p.Lanes) || p.tired {
		p.queueNextDue(&b, now)
	}
	if err := s.Send(ctx, &b); err != nil {
		return false, err
	}
	if soon { // without the time of a move: more than it takes may be due
		p.dueNext = now.Add(duePause(time.Since(now), p.Lease))
	}
	if due, err = p.moveStreamed(ctx, s, due); err != nil {
		return false, err
	}
	p.Cycle.SetPaused(paused)
	some := len(ready)+len(releasing)+len(due) > 0
	if some {
		p.Lanes.Found(ready, releasing, due)
		p.Signals.Kick()
	}
	found = some || working
	p.Progress.Waits(found, now)
	p.Keeper.Noticed(free, members, now)
	return found, nil
}

// maySleep reports whether an empty probe of that many lanes covered all work of this relay. It must not be waiting for
// Kafka or for another relay's lanes, and no event may be due soon.
func (p *Prober) maySleep(probed int) bool {
	due := !p.DueAt.IsZero() && time.Until(p.DueAt) < p.Lease
	return !due && p.Keeper.HasShare() && probed == len(p.Lanes.All()) && p.Health.Well()
}
