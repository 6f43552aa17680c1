package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// probe checks all of the relay's lanes for events, often while there are some and rarely when there are none, and
// wakes the pumps of lanes with events. It also notices relays that start and stop, and free lanes, long before the
// next heartbeat. It calls idle when the relay may sleep.
func (r *Relay) probe(ctx context.Context, idle func()) {
	s := r.session("prober")
	defer s.Close()
	pause, active, probed := outage.NewBackOff(), time.Now(), time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.woken:
			r.lanes.Woken()
		case <-r.probeAgain:
			r.lanes.Woken()
		case <-timer.C:
		}
		ask, floors, ids := r.lanes.ToProbe()
		if len(ask) == 0 && time.Since(probed) < r.cfg.ProbeIdle {
			timer.Reset(r.cfg.ProbeAwake) // all lanes are busy: probe for other relays only
			continue
		}
		probed = time.Now()
		r.tired = r.cfg.Sleep > 0 && probed.Sub(active) > r.cfg.IdleAfter
		found, err := r.probeOnce(ctx, s, ask, floors, ids)
		r.postgres.Report(s.Name, err, s.Heard())
		if found {
			active = time.Now()
		}
		wait := r.cfg.ProbeAwake
		switch {
		case err != nil:
			wait = pause.NextBackOff()
		case r.tired && !found && r.maySleep(len(ask)):
			idle()
			return
		case r.resting():
			wait = r.restFor()
			pause.Reset()
		case time.Since(active) > r.cfg.IdleAfter:
			wait = r.cfg.ProbeIdle
			pause.Reset()
		default:
			pause.Reset()
		}
		timer.Reset(wait)
	}
}

// probeOnce runs one probe. It reports whether events wait in the relay's lanes.
func (r *Relay) probeOnce(ctx context.Context, s *session, ask []int16, floors []int64, ids string) (found bool,
	err error,
) {
	now := time.Now()
	working := r.lanes.Working()
	var ready, releasing, due []int16
	var paused []string
	parked := r.lanes.Parked()
	var free bool
	var members int64
	var b pgx.Batch
	b.Queue(sql.ProbeSettings)
	b.Queue(r.sql(sql.Probe), ask, sql.Interval(r.cfg.Lease), floors, ids, parked).QueryRow(func(row pgx.Row) error {
		return row.Scan(&ready, &free, &members, &releasing)
	})
	soon := !now.Before(r.dueNext)
	if soon {
		r.queueProbeDue(&b, &due)
	}
	b.Queue(r.sql(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&paused) })
	if r.resting() || r.tired {
		r.queueNextDue(&b, now)
	}
	if err := s.Send(ctx, &b); err != nil {
		return false, err
	}
	if due, err = r.moveStreamed(ctx, s, due); err != nil {
		return false, err
	}
	if soon {
		r.dueNext = now.Add(duePause(time.Since(now), r.cfg.Lease))
	}
	r.setPaused(paused)
	some := len(ready)+len(releasing)+len(due) > 0
	if some {
		r.lanes.Found(ready, releasing, due)
		r.kickPumps()
	}
	switch found = some || working; {
	case !found:
		r.waiting.Store(0)
	case r.waiting.Load() == 0:
		r.waiting.Store(now.UnixNano())
	}
	if (free || members != r.members.Load()) && now.Sub(time.Unix(0, r.beaten.Load())) > beatAtLeast {
		r.requestBeat()
	}
	return found, nil
}
