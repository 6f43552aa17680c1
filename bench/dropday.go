package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/inbox"
)

// Batches are counted in slices of dropSlice, from dropBefore before a daily partition is dropped until dropAfter after
// it, since the disk may still be busy.
const (
	dropSlice  = 100 * time.Millisecond
	dropWarm   = time.Second
	dropBefore = 2 * time.Second
	dropAfter  = 500 * time.Millisecond
)

const (
	nameJustBefore = "Batch, just before a day is dropped"
	nameBeside     = "Batch, beside the drop of a day"
)

// dropHistory drops the daily partitions of the history by the inbox's maintenance, with a window that is shorter by a
// day each time.
func (s *stack) dropHistory(ctx context.Context, h inbox.Handler, rep *report, rows int) error {
	var took []float64
	for turn := 1; turn <= historyDays; turn++ {
		if err := s.exec(ctx, queryEmptyLedger, queryCheckpoint); err != nil {
			return err
		}
		var dropped []string
		shorter, err := inbox.New(s.db, "ledger", inbox.Config{
			Schema: "public", Window: time.Duration(14-turn) * 24 * time.Hour,
			Observer: inbox.Observer{Maintained: func(info inbox.MaintainedInfo) { dropped = info.Dropped }},
		})
		if err != nil {
			return err
		}
		if err := shorter.Prepare(ctx); err != nil {
			return err
		}
		var drop time.Duration
		before, beside, worst, err := rateBeside(ctx, h, func() error {
			began := time.Now()
			defer func() { drop = time.Since(began) }()
			return shorter.Maintain(ctx)
		})
		if err != nil {
			return err
		}
		if len(dropped) == 0 {
			return errors.New("maintenance has dropped no day")
		}
		ms := drop.Seconds() * 1000
		took = append(took, ms)
		before.Name, beside.Name = nameJustBefore, nameBeside
		for _, f := range []figure{before, beside} {
			f.Case, f.Turn = "history", turn
			rep.add(f)
		}
		rep.printf("    day %v: %.0f ms; the worst %v had a rate of %.0f/s", dropped, ms, dropSlice, worst)
	}
	rep.atMost("history", fmt.Sprintf("a day of %d rows dropped, ms", rows), 1000, took)
	rep.ratio("history", nameBeside, nameJustBefore, 0.9)
	return nil
}

// slice is the number of handled events at a moment.
type slice struct {
	at      time.Time
	handled int64
}

// rateBeside calls h from four goroutines with new batches, meanwhile calls do, and returns the rates before and during
// it, and in its slowest slice.
func rateBeside(ctx context.Context, h inbox.Handler, do func() error) (before, during figure, worst float64,
	err error,
) {
	ctx, cancel := context.WithCancelCause(ctx)
	var handled atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := h.Handle(ctx, newEvents(inboxBatch)); err != nil {
					cancel(err)
					return
				}
				handled.Add(inboxBatch)
			}
		})
	}
	done := make(chan struct{})
	began := time.Now().Add(dropWarm + dropBefore)
	var ended time.Time
	var failed error
	go func() {
		defer close(done)
		time.Sleep(time.Until(began))
		began = time.Now()
		failed = do()
		ended = time.Now()
	}()
	var all []slice
	tick := time.NewTicker(dropSlice)
	defer tick.Stop()
	for over := (<-chan time.Time)(nil); ; {
		select {
		case now := <-tick.C:
			all = append(all, slice{now, handled.Load()})
			continue
		case <-done:
			done, over = nil, time.After(dropAfter+dropSlice)
			continue
		case <-ctx.Done():
		case <-over:
		}
		break
	}
	if done != nil {
		<-done
	}
	if err := errors.Join(context.Cause(ctx), failed); err != nil {
		return before, during, 0, err
	}
	before, _ = between(all, began.Add(-dropBefore), began.Add(-dropSlice))
	during, worst = between(all, began, ended.Add(dropAfter))
	return before, during, worst, nil
}

// between sums the slices that overlap a time span, and returns the rate of the slowest.
func between(all []slice, from, to time.Time) (f figure, worst float64) {
	for i := 1; i < len(all); i++ {
		if !all[i].at.After(from) || all[i-1].at.After(to) {
			continue
		}
		n, took := int(all[i].handled-all[i-1].handled), all[i].at.Sub(all[i-1].at).Seconds()
		if rate := float64(n) / took; f.Events == 0 && f.Seconds == 0 || rate < worst {
			worst = rate
		}
		f.Events, f.Seconds = f.Events+n, f.Seconds+took
	}
	f.Rate = float64(f.Events) / max(f.Seconds, 1e-9)
	return f, worst
}
