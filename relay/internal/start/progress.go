package start

import (
	"sync/atomic"
	"time"
)

// Progress is since when events wait, and when some were last settled. The zero value is that of a relay without
// events.
type Progress struct {
	waiting   atomic.Int64 // since when events wait, 0: none do
	streaming atomic.Int64 // since when events from the WAL are being sent; 0: none are
	settled   atomic.Int64 // when events were last settled
}

// Waits records whether events wait, as a probe at that time has found.
func (p *Progress) Waits(some bool, at time.Time) {
	switch {
	case !some:
		p.waiting.Store(0)
	case p.waiting.Load() == 0:
		p.waiting.Store(at.UnixNano())
	}
}

// Streams records that events from the WAL are being sent, until the returned function is called.
func (p *Progress) Streams() (end func()) {
	p.streaming.Store(time.Now().UnixNano())
	return func() { p.streaming.Store(0) }
}

// Settled records that events were settled.
func (p *Progress) Settled() { p.settled.Store(time.Now().UnixNano()) }

// Stalled returns for how long events have waited while none was settled, or 0. held is for how long the relay has held
// some, which no probe finds.
func (p *Progress) Stalled(held time.Duration) time.Duration {
	since := p.waiting.Load()
	if s := p.streaming.Load(); since == 0 || s != 0 && s < since {
		since = s
	}
	if at := time.Now().Add(-held).UnixNano(); held > 0 && (since == 0 || at < since) {
		since = at
	}
	if since == 0 {
		return 0
	}
	return max(time.Since(time.Unix(0, max(since, p.settled.Load()))), 0)
}
