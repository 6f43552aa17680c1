package guard

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// heartbeat extends a lease during its owner's work.
type heartbeat struct {
	guard    *Guard
	lease    store.Lease
	workDone atomic.Bool // a lost lease is now the result of recording the outcome, and not reported
	end      context.CancelFunc
	endWork  context.CancelCauseFunc
	ended    chan struct{}
}

// startHeartbeat extends the lease, which was claimed at since or later, until stop. The context that it returns ends
// when the lease is lost, or may have ended.
func (g *Guard) startHeartbeat(ctx context.Context, l store.Lease, since time.Time) (context.Context, *heartbeat) {
	ctx, endWork := context.WithCancelCause(ctx)
	heartbeatCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	h := &heartbeat{guard: g, lease: l, end: end, endWork: endWork, ended: make(chan struct{})}
	go func() {
		defer close(h.ended)
		if err := h.run(heartbeatCtx, since.Add(g.cfg.Lease)); err != nil && !h.workDone.Load() {
			g.log.Warn("the lease of an idempotency key is lost: its work is cancelled", "operation", l.Key.Operation,
				"fence", l.Fence, "error", err)
			notify(g.cfg.Observer.LeaseLost, idempotency.LeaseLostInfo{Operation: l.Key.Operation, Fence: l.Fence})
			h.endWork(store.ErrLeaseLost)
		}
	}()
	return ctx, h
}

// stop ends the heartbeat, waits for it, and ends the work's context.
func (h *heartbeat) stop() {
	h.end()
	<-h.ended
	h.endWork(nil)
}

// run extends the lease until ctx ends, or returns the error that prevents it. It measures the end of the lease from
// before each request, so it is never later than the store's.
func (h *heartbeat) run(ctx context.Context, end time.Time) error {
	interval := h.guard.cfg.Heartbeat
	if interval < 0 {
		return h.failAfter(ctx, time.Until(end), errors.New("it is not extended: Config.Heartbeat is negative"))
	}
	wait, lastErr := interval, errors.New("the process was paused")
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
			return lastErr
		}
		extendCtx, cancel := context.WithDeadline(ctx, end)
		err := h.guard.store.Extend(extendCtx, h.lease, h.guard.cfg.Lease)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait, end = interval, sent.Add(h.guard.cfg.Lease)
		case errors.Is(err, store.ErrLeaseLost):
			return err
		default:
			wait, lastErr = interval/8, err
		}
	}
}

// failAfter returns the error after the delay, or nil if ctx ends before.
func (h *heartbeat) failAfter(ctx context.Context, d time.Duration, err error) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
		return err
	}
}
