package guard

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// keeper extends a lease while its owner works.
type keeper struct {
	guard    *Guard
	lease    store.Lease
	settling atomic.Bool // the work is over: a refusal now is the answer to what is being recorded
	end      context.CancelFunc
	lose     context.CancelCauseFunc
	ended    chan struct{}
}

// keep extends the lease until stop, beginning at since, when it was asked for. The context that it returns ends when
// the lease is lost, or would be by the time that the store gave.
func (g *Guard) keep(ctx context.Context, l store.Lease, since time.Time) (context.Context, *keeper) {
	ctx, lose := context.WithCancelCause(ctx)
	beating, end := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper{guard: g, lease: l, end: end, lose: lose, ended: make(chan struct{})}
	go func() {
		defer close(k.ended)
		if err := k.beat(beating, since.Add(g.cfg.Lease)); err != nil && !k.settling.Load() {
			g.log.Warn("the lease of an idempotency key is lost: its work is cancelled", "operation", l.Key.Operation,
				"fence", l.Fence, "error", err)
			notify(g.cfg.Observer.LeaseLost, idempotency.LeaseLostInfo{Operation: l.Key.Operation, Fence: l.Fence})
			k.lose(store.ErrLeaseLost)
		}
	}()
	return ctx, k
}

// stop ends the heartbeat, waits for it, and ends the work's context.
func (k *keeper) stop() {
	k.end()
	<-k.ended
	k.lose(nil)
}

// beat extends the lease until ctx ends, and returns why it cannot any more. The end of the lease is measured here,
// from before each question, so it is never later than the store's.
func (k *keeper) beat(ctx context.Context, end time.Time) error {
	every := k.guard.cfg.Heartbeat
	if every < 0 {
		return k.waitToFail(ctx, time.Until(end), errors.New("it is not extended: Config.Heartbeat is negative"))
	}
	wait, last := every, errors.New("the process stood still")
	for {
		timer := time.NewTimer(min(wait, time.Until(end)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		sent := time.Now()
		if !sent.Before(end) {
			return last
		}
		asking, cancel := context.WithDeadline(ctx, end)
		err := k.guard.store.Extend(asking, k.lease, k.guard.cfg.Lease)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait, end = every, sent.Add(k.guard.cfg.Lease)
		case errors.Is(err, store.ErrLeaseLost):
			return err
		default:
			wait, last = every/8, err
		}
	}
}

// waitToFail returns the error after the time, or nil when ctx ended before.
func (k *keeper) waitToFail(ctx context.Context, d time.Duration, err error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
		return err
	}
}
