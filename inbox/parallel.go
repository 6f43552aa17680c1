package inbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// spreads reports whether the next events may be given to parts. Those that the progress proves to be decided may not:
// it must not go back before one of them runs.
func (b *batch) spreads() bool {
	of, _ := b.assignment.provenEvents()
	return b.in.cfg.Parallel > 1 && !b.part && b.offset(b.pos) >= of.to &&
		b.walk.spreads(b.assignment.unfinished(), b.offset)
}

// spread decides events in several transactions at a time. Each part has keys of its own, so that the order of a key is
// that of its part, and retries, splits and parks as a batch does. The progress moves once all parts are decided: until
// then only ids tell which events are. Where a part cannot go on, as before an event that halts the partition, the
// batch does, which then runs its events one transaction after the other.
func (b *batch) spread(ctx context.Context) *failure {
	b.limit = len(b.events)
	b.limit = b.beforeOld()
	dealt := deal(b.events[b.pos:b.limit], b.in.cfg.Parallel)
	if len(dealt) > 1 && b.writesRange() {
		if f := b.writeRange(ctx); f != nil {
			return f
		}
	}
	if b.spreadTo = b.limit; len(dealt) < 2 {
		return nil
	}
	f := b.runParts(ctx, dealt)
	if f != nil && f.kind != canceled {
		return f
	}
	if undecided := slices.Index(b.out[b.pos:b.limit], Undecided); undecided >= 0 {
		b.limit = b.pos + undecided
	}
	if b.limit > b.pos {
		if f := b.passParts(ctx); f != nil {
			return f
		}
	}
	b.walk.done(len(b.events))
	return f
}

// runParts runs the parts and stores their outcomes. The failure is what ends the whole batch.
func (b *batch) runParts(ctx context.Context, dealt [][]int) *failure {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, errs, thrown := make([]*batch, len(dealt)), make([]error, len(dealt)), make([]any, len(dealt))
	var all sync.WaitGroup
	for n, indexes := range dealt {
		part := &batch{
			walk: startWalk(len(indexes)), in: b.in, run: b.run, events: make([]event.Event, len(indexes)),
			out: make([]Outcome, len(indexes)), name: b.name, assignment: b.assignment, part: true,
		}
		for i, index := range indexes {
			part.events[i] = b.events[b.pos+index]
		}
		parts[n] = part
		all.Go(func() {
			defer func() {
				if thrown[n] = recover(); thrown[n] != nil {
					cancel()
				}
			}()
			if errs[n] = part.finish(ctx); isDatabaseChanged(errs[n]) {
				cancel() // the others would meet it as well, some of them after a long pause
			}
		})
	}
	all.Wait()
	for _, p := range thrown {
		if p != nil {
			panic(p) // where the caller can recover it
		}
	}
	for n, indexes := range dealt {
		for i, index := range indexes {
			b.out[b.pos+index] = parts[n].out[i]
		}
	}
	if i := slices.IndexFunc(errs, isDatabaseChanged); i >= 0 {
		return &failure{kind: databaseChanged, err: errs[i]}
	}
	if ctx.Err() != nil {
		return &failure{kind: canceled, err: ctx.Err()}
	}
	return nil
}

func isDatabaseChanged(err error) bool {
	_, is := errors.AsType[*DatabaseChangedError](err)
	return is
}

// passParts moves the account, and the progress if that is due, past the events that parts have decided.
func (b *batch) passParts(ctx context.Context) *failure {
	events, out := b.events[b.pos:b.limit], b.out[b.pos:b.limit]
	target, due := b.progressTarget(out), ctx.Err() == nil && b.progressIsDue()
	if due {
		f := b.in.transact(ctx, &planned{}, b.assignment, target, func(*pgx.Conn, bool) (did, *failure) {
			return did{}, nil
		})
		if f != nil {
			return f
		}
	}
	b.in.missing(b.name, b.assignment.accounted(), target.account, b.offset(b.pos))
	b.assignment.setDecided(target, due)
	b.assignment.decided(events, out)
	return nil
}

// deal deals events out to at most n parts, each key to one of them, so that all have about as many. It returns the
// indexes of each part's events in log order.
func deal(events []event.Event, n int) [][]int {
	of := map[listName][]int{}
	for i := range events {
		key := listOf(&events[i])
		of[key] = append(of[key], i)
	}
	keys := slices.SortedFunc(maps.Values(of), func(a, b []int) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0], b[0]))
	})
	parts := make([][]int, min(n, len(keys)))
	for _, indexes := range keys {
		least := 0
		for p := range parts {
			if len(parts[p]) < len(parts[least]) {
				least = p
			}
		}
		parts[least] = append(parts[least], indexes...)
	}
	for _, part := range parts {
		slices.Sort(part)
	}
	return parts
}
