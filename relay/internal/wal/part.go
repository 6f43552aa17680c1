package wal

import (
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// mode is a relay's part in reading the WAL.
type mode int32

const (
	off         mode = iota // it reads no WAL
	starting                // it does not know yet which relay reads: it takes no lanes
	standby                 // another relay reads: it takes no lanes
	streaming               // it reads: it takes all lanes
	unavailable             // no relay can: it publishes from the table
)

// Part is a relay's mode, for its other actors. The zero value is that of a relay that reads no WAL.
type Part struct {
	mode atomic.Int32
	why  atomic.Pointer[reason]
}

// reason is why the WAL is not read, or nil, and since when the relay has had its mode.
type reason struct {
	since time.Time
	err   error
}

// Begin is called before the first heartbeat of a relay that will read the WAL or stand by.
func (p *Part) Begin() { p.mode.Store(int32(starting)) }

// now returns the mode.
func (p *Part) now() mode { return mode(p.mode.Load()) }

// set sets the mode, and why the WAL is not read, or nil. It reports whether the mode is another one.
func (p *Part) set(to mode, why error) (changed bool) {
	last, changed := p.why.Load(), to != p.now()
	if changed || last == nil {
		p.why.Store(&reason{time.Now(), why})
	} else if why != nil {
		p.why.Store(&reason{last.since, why})
	}
	p.mode.Store(int32(to))
	return changed
}

// Unavailable returns why the WAL is not read, and since when; nil if it is, or need not be.
func (p *Part) Unavailable() (since time.Time, err error) {
	if why := p.why.Load(); why != nil && p.now() == unavailable {
		return why.since, why.err
	}
	return time.Time{}, nil
}

// Polls reports whether the pumps get the lanes that have no feed.
func (p *Part) Polls() bool { return p.now() == off || p.now() == unavailable }

// Share returns how many lanes the relay should own, from its fair share.
func (p *Part) Share(fair int) int {
	switch p.now() {
	case starting, standby:
		return 0
	case streaming:
		return lanes.Count
	case off, unavailable:
	}
	return fair
}

// Rests reports whether no probes are needed, because events come by themselves or to another relay.
func (p *Part) Rests(t *lanes.Table) bool {
	switch p.now() {
	case standby:
		return true
	case streaming:
		return t.AllFromWAL()
	case off, starting, unavailable:
	}
	return false
}
