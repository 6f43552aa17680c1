package inbox

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/effectonce/effectonce/internal/sleep"
)

// gateRoom is more than the goroutines that a process has.
const gateRoom = 1 << 30

// aloneFor is how long a run is alone at most. An effect takes milliseconds; one that hangs must not stop every
// partition of its process. It is counted while others run beside it, so their kills count against it, too: hardly
// [Config.CrashAttempts] times in a row.
const aloneFor = 5 * time.Second

// Gate lets a counted run be alone in its process: a run that may kill the process must not be counted while a
// neighbour's event does. Inboxes that share a process share a Gate; one inbox alone has its own. The zero value is not
// ready: use [NewGate].
type Gate struct{ room *semaphore.Weighted }

// NewGate returns a Gate for Config.Gate of every inbox of a process.
func NewGate() *Gate { return &Gate{room: semaphore.NewWeighted(gateRoom)} }

// enter waits until the run may begin: beside others, or alone. First come, first served: a stream of batches cannot
// keep a counted run waiting. Nor does a counted run that waits for a long one keep the others waiting: it leaves the
// queue now and then, for four times as long as it waited, and then waits for longer. A counted run that is long itself
// is alone for aloneFor only.
func (g *Gate) enter(ctx context.Context, alone bool) (leave func(), err error) {
	if !alone {
		if err := g.room.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		return func() { g.room.Release(1) }, nil
	}
	for timeout := 250 * time.Millisecond; ; timeout = min(2*timeout, time.Minute) {
		waiting, cancel := context.WithTimeout(ctx, timeout)
		err := g.room.Acquire(waiting, gateRoom)
		cancel()
		if err == nil {
			return g.alone(), nil
		}
		if err := sleep.For(ctx, 4*timeout); err != nil {
			return nil, err
		}
	}
}

// alone returns what ends a run that has the whole gate. After aloneFor it keeps only one place.
func (g *Gate) alone() (leave func()) {
	over := time.AfterFunc(aloneFor, func() { g.room.Release(gateRoom - 1) })
	return func() {
		if over.Stop() {
			g.room.Release(gateRoom)
			return
		}
		g.room.Release(1)
	}
}
