// Package pump repeats the cycle of claim, publish and settle for some lanes of a relay.
package pump

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// Pump owns some of a relay's lanes: lane modulo pumps.
type Pump struct {
	*start.Start
	Cycle      *cycle.Cycle
	Number, Of int

	session *cycle.Session
	rest    remainders
}

// Run repeats one step: claim, publish, settle. It makes no new claim once ctx has ended, and finishes its claim while
// work lives.
func (p *Pump) Run(ctx, work context.Context) {
	s := &cycle.Session{Session: p.Session(fmt.Sprintf("pump %d", p.Number))}
	defer s.Close()
	p.session, p.rest = s, remainders{done: make(chan remainder, lanes.Count)}
	pause, apart := outage.NewBackOff(), &cycle.Apart{May: p.mayRetryApart, Retry: p.retryApart}
	for ctx.Err() == nil {
		for len(p.rest.done) > 0 {
			p.settleRemainder(work, <-p.rest.done)
		}
		grants := p.Lanes.Take(p.Number, p.Of, time.Now())
		if len(grants) == 0 {
			p.await(ctx, work)
			continue
		}
		_, err := p.Cycle.Step(work, s, grants, apart)
		switch rests := p.report(grants, err); {
		case err == nil:
			pause.Reset()
			continue
		case rests:
			continue
		}
		_ = sleep.For(ctx, pause.NextBackOff())
	}
	for p.rest.n > 0 {
		p.settleRemainder(work, <-p.rest.done)
	}
}

// await waits until a lane may be ready, or until a remainder has ended, which it settles.
func (p *Pump) await(ctx, work context.Context) {
	if p.Lanes.Idle(p.Number, p.Of) { // the lanes that it failed at are gone
		p.Postgres.Report(p.session.Name, nil, p.session.Heard())
		p.Cycle.ReportRest(p.session.Name)
	}
	var rested <-chan time.Time
	if at := p.Lanes.Rested(p.Number, p.Of, time.Now()); !at.IsZero() {
		rested = time.After(time.Until(at))
	}
	select {
	case <-ctx.Done():
	case <-p.Signals.Kicks[p.Number]:
	case <-rested:
	case one := <-p.rest.done:
		p.settleRemainder(work, one)
	}
}

// report records the end of a step. It is no outage that the server refuses the work on lanes: they are claimed apart
// until those at fault rest alone, a heartbeat tells whether the server can write, and a proof whether the relay can
// work. rests: the pump need not pause, because the lane does.
func (p *Pump) report(grants []lanes.Grant, err error) (rests bool) {
	outage := err
	switch {
	case err == nil:
		for _, g := range grants {
			p.Worked(g.Lane, false)
		}
	case pgerr.Answered(err):
		if pgerr.Away(err) {
			p.Signals.Beat() // which tells whether the server can write
		}
		outage, rests = nil, len(grants) == 1
	}
	p.Postgres.Report(p.session.Name, outage, p.session.Heard())
	return rests
}
