package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/effectonce/effectonce/internal/sleep"
)

// gateRoom is larger than the number of goroutines of any process.
const gateRoom = 1 << 30

// aloneFor is the longest time for which a run is alone. An effect takes milliseconds; one that hangs must not stop all
// partitions of its process. After that time the run stays counted next to others, and a process death that they cause
// counts against it too. That is unlikely [Config.CrashAttempts] times in a row.
const aloneFor = 5 * time.Second

// Gate lets a counted run be alone in its process. A process death that another event causes must not count against the
// event of a counted run. It also keeps a connection of each pool free, for effects that read through the pool: without
// one, transactions that hold all connections would wait for each other. Inboxes of one process share a Gate; a single
// inbox has its own. Where the inboxes of a pool do not, one that gets the last connection gives it back. The zero
// value is not usable: use [NewGate].
type Gate struct {
	room *semaphore.Weighted

	mu    sync.Mutex
	pools map[*pgxpool.Pool]*semaphore.Weighted // the runs that may have a connection of the pool
}

// NewGate returns a Gate for Config.Gate of every inbox of a process.
func NewGate() *Gate {
	return &Gate{room: semaphore.NewWeighted(gateRoom), pools: map[*pgxpool.Pool]*semaphore.Weighted{}}
}

// begin waits until a run with a transaction of the pool may begin, shared or alone.
func (g *Gate) begin(ctx context.Context, db *pgxpool.Pool, alone bool) (leave func(), err error) {
	left, err := g.enter(ctx, alone)
	if err != nil {
		return nil, err
	}
	pool := g.pool(db)
	if err := pool.Acquire(ctx, 1); err != nil {
		left()
		return nil, err
	}
	return func() { pool.Release(1); left() }, nil
}

func (g *Gate) pool(db *pgxpool.Pool) *semaphore.Weighted {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pools[db] == nil {
		g.pools[db] = semaphore.NewWeighted(int64(max(1, db.Stat().MaxConns()-1)))
	}
	return g.pools[db]
}

// starved names the pool in the failure of an effect that took too long, if somebody waited for a connection of it in
// vain since before: most likely the effect itself, for a connection that no transaction leaves free.
func starved(f *failure, db *pgxpool.Pool, before int64) *failure {
	if s := db.Stat(); errors.Is(f.err, errOverdue) && s.CanceledAcquireCount() > before {
		f.err = fmt.Errorf("%w (meanwhile somebody waited in vain for a connection of the inbox's pool, which has at "+
			"most %d: an effect that uses the pool beside its tx needs one that is free; raise MaxConns, or give the "+
			"inboxes of the pool one Config.Gate)", f.err, s.MaxConns())
	}
	return f
}

// acquire returns a connection of the pool for a transaction, and leaves one for effects. A Gate sees to that among its
// own inboxes only: whoever gets the pool's last connection waits until another one is free, and gives it back if that
// takes long, for four times as long. So no two inboxes, whatever their gates, wait for each other. One transaction of
// an inbox at a time waits so: several would have the connection by turns, and effects would hardly get it.
func (in *Inbox) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	began, first := time.Now(), false
	for timeout := 10 * time.Millisecond; ; timeout = min(2*timeout, 250*time.Millisecond) {
		conn, err := in.db.Acquire(ctx)
		if s := in.db.Stat(); err != nil || s.AcquiredConns() < s.MaxConns() || s.MaxConns() == 1 {
			return conn, err
		}
		if !first {
			conn.Release()
			if err := in.last.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			defer in.last.Release(1)
			first = true
			continue
		}
		waiting, cancel := context.WithTimeout(ctx, timeout)
		free, err := in.db.Acquire(waiting)
		cancel()
		if err == nil {
			free.Release()
			return conn, nil
		}
		conn.Release()
		if time.Since(began) > crowdedAfter {
			in.crowd(&in.crowded, "inbox: the pool has no connection that stays free for effects: transactions wait "+
				"for one; raise MaxConns, or give the inboxes of the pool one Config.Gate")
		}
		if err := sleep.For(ctx, 4*timeout); err != nil {
			return nil, err
		}
	}
}

// crowdedAfter is how long a transaction waits for a connection before that is said.
const crowdedAfter = 10 * time.Second

// leaked says that others than transactions of the inbox hold all connections of its pool, if it is so.
func (in *Inbox) leaked() {
	if s := in.db.Stat(); in.transactions.Load() == 0 && s.AcquiredConns() == s.MaxConns() {
		in.crowd(&in.drained, "inbox: effects, or other code, hold all connections of the pool, and events wait for "+
			"one: a pgx.Tx or Rows that is never closed keeps its own")
	}
}

// crowd says once how the pool is too small for what uses it.
func (in *Inbox) crowd(said *atomic.Bool, text string) {
	if !said.Swap(true) {
		in.log.Warn(text, "max_conns", in.db.Stat().MaxConns())
	}
}

// enter waits until the run may begin, shared or alone. Waiters are served in order, so a stream of batches cannot
// starve a counted run. A counted run that waits behind a long run does not block the others either: it leaves the
// queue repeatedly, for four times as long as it waited, and then waits longer. A counted run that is itself long is
// alone only for aloneFor.
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

// alone returns the function that ends a run that holds the whole gate. After aloneFor the run keeps one share only.
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
