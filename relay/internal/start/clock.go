package start

import (
	"sync/atomic"
	"time"
)

// Clock is the database's clock, as of the last heartbeat: this machine's may be days behind.
type Clock struct{ last atomic.Pointer[reading] }

// reading is a reading of the database's clock, and the local time of it.
type reading struct{ database, local time.Time }

// Set records what the database's clock has just shown.
func (c *Clock) Set(database time.Time) { c.last.Store(&reading{database, time.Now()}) }

// Now returns the database's time, or false if it was not read yet.
func (c *Clock) Now() (now time.Time, known bool) {
	last := c.last.Load()
	if last == nil {
		return time.Time{}, false
	}
	return last.database.Add(time.Since(last.local)), true
}
