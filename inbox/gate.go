package inbox

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// gateRoom is more than the goroutines that a process has.
const gateRoom = 1 << 30

// Gate lets a counted run be alone in its process: a run that may kill the process must not be counted while a
// neighbour's event does. Inboxes that share a process share a Gate; one inbox alone has its own. The zero value is not
// ready: use [NewGate].
type Gate struct{ room *semaphore.Weighted }

// NewGate returns a Gate for Config.Gate of every inbox of a process.
func NewGate() *Gate { return &Gate{room: semaphore.NewWeighted(gateRoom)} }

// enter waits until the run may begin: beside others, or alone. It is first come, first served, so that a stream of
// batches cannot keep a counted run waiting. Nor does one that waits for a run which takes long keep the others waiting
// for it: it steps back now and then, for four times as long as it waited, and then waits for longer.
func (g *Gate) enter(ctx context.Context, alone bool) (leave func(), err error) {
	if !alone {
		if err := g.room.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		return func() { g.room.Release(1) }, nil
	}
	for patience := 250 * time.Millisecond; ; patience = min(2*patience, time.Minute) {
		waiting, cancel := context.WithTimeout(ctx, patience)
		err := g.room.Acquire(waiting, gateRoom)
		cancel()
		if err == nil {
			return func() { g.room.Release(gateRoom) }, nil
		}
		if err := sleep(ctx, 4*patience); err != nil {
			return nil, err
		}
	}
}
