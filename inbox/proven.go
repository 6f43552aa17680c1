package inbox

import (
	"context"
	"errors"
	"fmt"

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
	return of.has(b.offset(i)) &&
		b.in.state.Load().place(b.events[i].ID, b.in.cfg.windowDays, b.in.cfg.DaysAhead) == tooOld
}

// provenOld returns how many events from pos on are decided for certain, and too old for their ids to tell.
func (b *batch) provenOld(ctx context.Context) (n int, f *failure) {
	of := b.assignment.provenEvents()
	if b.in.cfg.Dedup != ByID || of.from >= of.to {
		return 0, nil
	}
	for b.pos+n < len(b.events) && b.isOld(b.pos+n, of) {
		n++
	}
	if n == 0 {
		return 0, nil
	}
	// The progress proves nothing if the database has lost it since.
	now, f := b.in.readDatabase(ctx)
	if f == nil {
		f = b.assignment.checkDatabase(now)
	}
	if f == nil {
		f = b.in.checkProgress(ctx, b.in.db, b.name, b.assignment)
	}
	if f == nil && b.assignment.sayProven() {
		b.in.log.Warn("inbox: events are read again that are too old for their ids to tell whether they are repeats: "+
			"dropping them, because the partition's progress in this log is past them", "topic", b.name.topic,
			"partition", b.name.id, "from", b.offset(b.pos), "progress", of.to)
	}
	return n, f
}

// beforeOld returns the limit of a transaction that must not have an event of provenOld.
func (b *batch) beforeOld() int {
	if of := b.assignment.provenEvents(); b.in.cfg.Dedup == ByID && of.from < of.to {
		for i := b.pos + 1; i < b.limit; i++ {
			if b.isOld(i, of) {
				return i
			}
		}
	}
	return b.limit
}

func (a *assignment) provenEvents() proven {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.proven
}

// sayProven reports true once.
func (a *assignment) sayProven() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	said := a.proven.said
	a.proven.said = true
	return !said
}
