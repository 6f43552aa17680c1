package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// proven are the offsets from from to below to, of which the progress proves that they were decided. They are read
// again because the group's offset is below the progress. An id decides whether its event is a repeat; for one that is
// too old, the progress does.
type proven struct {
	from, to int64
	said     bool
}

func (of proven) has(offset int64) bool { return of.from <= offset && offset < of.to }

// skipped are the ranges of a partition that operators have skipped. Their events never run, wherever the group is.
type skipped struct {
	ranges []proven
	said   bool
}

func (s skipped) has(offset int64) bool {
	return slices.ContainsFunc(s.ranges, func(of proven) bool { return of.has(offset) })
}

// readSkipped reads what operators have skipped of the log of the partition.
func (in *Inbox) readSkipped(ctx context.Context, p partitionName) (s skipped, err error) {
	rows, err := in.db.Query(ctx, in.q(sqlSkipped), in.consumer, p.topic, p.id)
	if err == nil {
		var of proven
		_, err = pgx.ForEachRow(rows, []any{&of.from, &of.to}, func() error {
			s.ranges = append(s.ranges, of)
			return nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("inbox: reading what operators have skipped of %s-%d: %w", p.topic, p.id, err)
	}
	return s, nil
}

// readsAgain reads which of the events that are read again are decided for certain.
func (in *Inbox) readsAgain(ctx context.Context, p partitionName, a *assignment, log *string) error {
	var is proven
	err := in.db.QueryRow(ctx, in.q(sqlProven), in.consumer, p.topic, p.id, log).Scan(&is.from, &is.to)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("inbox: reading what is decided of %s-%d: %w", p.topic, p.id, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.proven = is
	return nil
}

// isOld reports whether only the progress can tell that the event is a repeat, and does.
func (b *batch) isOld(i int, of proven) bool {
	return b.in.cfg.Dedup == ByID && of.has(b.offset(i)) &&
		b.in.state.Load().route(b.events[i].ID, b.in.cfg.windowDays, b.in.cfg.DaysAhead) == tooOld
}

// provenOld returns how many events from pos on are decided for certain, by the progress, being too old for their ids
// to tell, or by an operator who skipped them.
func (b *batch) provenOld(ctx context.Context) (n int, f *failure) {
	of, gone := b.assignment.provenEvents()
	skips := 0
	for ; b.pos+n < len(b.events); n++ {
		if gone.has(b.offset(b.pos + n)) {
			skips++
		} else if !b.isOld(b.pos+n, of) {
			break
		}
	}
	if n == 0 {
		return 0, nil
	}
	// Neither proves anything if the database has lost it since.
	f = b.in.lostHome(ctx, b.name, b.assignment)
	if f == nil && skips > 0 && b.assignment.saySkipped() {
		b.in.log.Warn("inbox: events are read that an operator has skipped (relay inbox audit): dropping them as "+
			"repeats, their effects do not run", "topic", b.name.topic, "partition", b.name.id, "from", b.offset(b.pos),
			"to", b.offset(b.pos+n-1)+1)
	}
	if f == nil && n > skips && b.assignment.sayProven() {
		b.in.log.Warn("inbox: events are read again that are too old for their ids to tell whether they are repeats: "+
			"dropping them, because the partition's progress in this log is past them", "topic", b.name.topic,
			"partition", b.name.id, "from", b.offset(b.pos), "progress", of.to)
	}
	return n, f
}

// beforeOld returns the limit of a transaction that must not have an event of provenOld.
func (b *batch) beforeOld() int {
	of, gone := b.assignment.provenEvents()
	for i := b.pos + 1; i < b.limit; i++ {
		if gone.has(b.offset(i)) || b.isOld(i, of) {
			return i
		}
	}
	return b.limit
}

func (a *assignment) provenEvents() (proven, skipped) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.proven, a.skipped
}

// saySkipped reports true once.
func (a *assignment) saySkipped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	said := a.skipped.said
	a.skipped.said = true
	return !said
}

// sayProven reports true once.
func (a *assignment) sayProven() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	said := a.proven.said
	a.proven.said = true
	return !said
}
