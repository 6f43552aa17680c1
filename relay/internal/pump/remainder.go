package pump

import (
	"context"
	"time"

	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/outage"
)

// remainder is the part of a claim that fails while others answer: lanes with events that are not acked. It is retried
// apart, so that the pump's other lanes do not wait.
type remainder struct {
	claim  *cycle.Claim
	result cycle.Result
}

// remainders are those of a pump.
type remainders struct {
	done             chan remainder // has room for all
	n, events, bytes int
}

func (s *remainders) count(c *cycle.Claim, sign int) {
	events, bytes := c.Size()
	s.n, s.events, s.bytes = s.n+sign, s.events+sign*events, s.bytes+sign*bytes
}

// retryApart publishes the rest of a claim on a goroutine of its own. All remainders of a pump together are no larger
// than a claim may be, but for the last.
func (p *Pump) retryApart(work context.Context, c *cycle.Claim) {
	p.rest.count(c, 1)
	go func() {
		_ = sleep.For(work, outage.NewBackOff().NextBackOff())
		result := p.Cycle.Publish(work, c, nil)
		p.Cycle.ReportRest(c.By) // if it has failed so far, the remainder reports that now
		p.rest.done <- remainder{c, result}
	}()
}

// settleRemainder settles a remainder whose publishing has ended.
func (p *Pump) settleRemainder(work context.Context, one remainder) {
	p.rest.count(one.claim, -1)
	p.report(one.claim.Grants(), p.Cycle.Finish(work, p.session.Session, one.claim, one.result))
}

// mayRetryApart reports whether the rest of an attempt may be retried apart. While no place answers, the claim is kept,
// and no more is claimed. If nothing else was sent, no place can have acked: then the publisher is asked.
func (p *Pump) mayRetryApart(ctx context.Context, since time.Time) bool {
	if p.rest.events >= p.Cycle.MostEvents || p.rest.bytes >= p.Cycle.MostBytes {
		return false
	}
	return p.Health.OthersAnswer(since) || p.To.Reach != nil && p.AskKafka(ctx) == nil
}
