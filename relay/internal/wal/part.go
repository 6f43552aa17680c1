package wal

import (
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// Mode is a relay's part in reading the WAL.
type Mode int32

const (
	Off         Mode = iota // it reads no WAL
	Starting                // it does not know yet which relay reads: it takes no lanes
	Standby                 // another relay reads: it takes no lanes
	Streaming               // it reads: it takes all lanes
	Unavailable             // no relay can: it publishes from the table
)

// Part is a relay's mode, for its other actors. The zero value is Off.
type Part struct {
	mode atomic.Int32
	why  atomic.Pointer[reason]
}

// reason is why the WAL is not read, or nil, and since when the relay has had its mode.
type reason struct {
	since time.Time
	err   error
}

// Begin says, before the first heartbeat, that the relay will read the WAL or stand by.
func (p *Part) Begin() { p.mode.Store(int32(Starting)) }

// Mode returns the mode.
func (p *Part) Mode() Mode { return Mode(p.mode.Load()) }

// set reports whether the mode is another one.
func (p *Part) set(mode Mode, why error) (changed bool) {
	last, changed := p.why.Load(), mode != p.Mode()
	if changed || last == nil {
		p.why.Store(&reason{time.Now(), why})
	} else if why != nil {
		p.why.Store(&reason{last.since, why})
	}
	p.mode.Store(int32(mode))
	return changed
}

// Unavailable returns why the WAL is not read, and since when; nil if it is, or need not be.
func (p *Part) Unavailable() (since time.Time, err error) {
	if why := p.why.Load(); why != nil && p.Mode() == Unavailable {
		return why.since, why.err
	}
	return time.Time{}, nil
}

// Polls reports whether the pumps get the lanes that have no source.
func (p *Part) Polls() bool { return p.Mode() == Off || p.Mode() == Unavailable }

// Share returns how many lanes the relay should own, from its fair share.
func (p *Part) Share(fair int) int {
	switch p.Mode() {
	case Starting, Standby:
		return 0
	case Streaming:
		return lanes.Count
	case Off, Unavailable:
	}
	return fair
}

// Rests reports whether no probes are needed, because events come by themselves or to another relay.
func (p *Part) Rests(t *lanes.Table) bool {
	switch p.Mode() {
	case Standby:
		return true
	case Streaming:
		return t.AllFromWAL()
	case Off, Starting, Unavailable:
	}
	return false
}
