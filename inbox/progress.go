package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// CodeKilled is the code of an event that is parked because its process died during each of its counted runs.
const CodeKilled = "killed"

// errKilled is the cause for an event without counted runs left.
var errKilled = Terminal(CodeKilled, errors.New("its effect killed the process, or was running whenever something "+
	"else did, in every counted run"))

// progressTarget is the offset to which a transaction moves the progress of a partition.
type progressTarget struct {
	partitionName
	next int64
	out  []Outcome // of the transaction's events; nil: no effect was applied
}

// Revoked implements [Handler]: it writes the progress that is not yet stored, for the next owner.
func (h *handler) Revoked(ctx context.Context, topic string, partition int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	p := partitionName{topic, partition}
	if err := h.writeProgress(ctx, p, h.assignments.get(p)); err != nil {
		h.log.Warn("inbox: the progress of a partition that is given away stays some seconds behind", "topic", topic,
			"partition", partition, "error", err)
	}
}

// writeIdleProgress writes the progress of partitions that became idle.
func (in *Inbox) writeIdleProgress(ctx context.Context) error {
	in.handlers.Lock()
	all := slices.Clone(in.handlers.all)
	in.handlers.Unlock()
	var errs []error
	for _, h := range all {
		for p, a := range h.assignments.due() {
			errs = append(errs, in.writeProgress(ctx, p, a))
		}
	}
	return errors.Join(errs...)
}

// writeProgress stores the current progress, but only in the database in which the events were decided.
func (in *Inbox) writeProgress(ctx context.Context, p partitionName, a *assignment) error {
	next, database := a.unwrittenProgress()
	if next == 0 {
		return nil
	}
	_, err := in.db.Exec(ctx, in.q(sqlWriteProgress), in.consumer, p.topic, p.id, next, database, a.sinceEffect(nil))
	if err != nil {
		return fmt.Errorf("inbox: moving the progress of %s-%d: %w", p.topic, p.id, err)
	}
	a.setWritten(next)
	return nil
}

// load reads the progress of an earlier process.
func (in *Inbox) load(ctx context.Context, p partitionName, a *assignment) *failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loaded {
		return nil
	}
	if a.database == "" {
		var f *failure
		if a.database, f = in.readDatabase(ctx); f != nil {
			return f
		}
	}
	from, to, attempts, _, err := in.readProgress(ctx, p)
	if err != nil {
		return in.classify(ctx, err)
	}
	if a.span.from, a.span.to = 0, 0; from < to {
		a.span.from, a.span.to = from, to
		in.log.Warn("inbox: an earlier process ended within this range: its events run one at a time, counted",
			"topic", p.topic, "partition", p.id, "from", from, "to", to, "attempts", attempts)
	}
	a.loaded = true
	return nil
}

// Progress returns the offset up to which the database of the effects knows all events of a partition to be decided. It
// may lag by some seconds. If the group's committed offset is further ahead, the database has lost effects: it was
// restored. known is false until the inbox has decided an event of the partition.
func (in *Inbox) Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error) {
	next, _, _, known, err = in.readProgress(ctx, partitionName{topic, partition})
	return next, known, err
}

// Progress is [Inbox.Progress]. It also records which database answered: one that takes over later may know less.
func (h *handler) Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error) {
	// Read the database first. If it changes in between, the progress is the new one's, and at worst a change is
	// reported needlessly. The other order could miss a change.
	database, f := h.readDatabase(ctx)
	if f != nil {
		return 0, false, f.err
	}
	a := h.assignments.get(partitionName{topic, partition})
	a.mu.Lock()
	a.database = database
	a.mu.Unlock()
	return h.Inbox.Progress(ctx, topic, partition)
}

func (in *Inbox) readDatabase(ctx context.Context) (database string, f *failure) {
	if err := in.db.QueryRow(ctx, in.q(sqlHome)).Scan(&database); err != nil {
		return "", in.classify(ctx, fmt.Errorf("inbox: asking which database this is: %w", err))
	}
	return database, nil
}

// MovedError is returned by a handler when its database, or the database's timeline, is not the one in which the
// handler began a partition: a standby has taken over, or a backup was restored. The new database may lack effects
// whose offsets are committed. It has decided nothing of the batch. A consumer restarts its partitions from the
// progress of the database. Other callers may call Handle again; they must find the event to start from, see
// [Inbox.Progress].
type MovedError struct {
	From, To string // system identifier and timeline
}

// Error returns a message with both databases.
func (e *MovedError) Error() string {
	return fmt.Sprintf("inbox: the database is another one than before (%s, now %s): a standby took over, or a "+
		"backup was restored; it may have forgotten what was decided", e.From, e.To)
}

// readProgress reads the row of a partition; known is false if there is none.
func (in *Inbox) readProgress(ctx context.Context, p partitionName) (from, to int64, attempts int32, known bool,
	err error,
) {
	err = in.db.QueryRow(ctx, in.q(sqlProgress), in.consumer, p.topic, p.id).Scan(&from, &to, &attempts)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, 0, 0, false, nil
	case err != nil:
		return 0, 0, 0, false, fmt.Errorf("inbox: reading the progress of %s-%d: %w", p.topic, p.id, err)
	}
	return from, to, attempts, true, nil
}

// writeRange stores the range of the next batch, in a transaction of its own.
func (in *Inbox) writeRange(ctx context.Context, p partitionName, a *assignment, from, to int64) *failure {
	tag, err := in.db.Exec(ctx, in.q(sqlRange), in.consumer, p.topic, p.id, from, to, a.beganIn())
	if err == nil && tag.RowsAffected() == 0 {
		return a.checkDatabase("another database")
	}
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: writing the range of %s-%d: %w", p.topic, p.id, err))
	}
	return nil
}

// count commits that the event at offset is about to run. spent: the event has no counted run left.
func (in *Inbox) count(ctx context.Context, p partitionName, a *assignment, offset int64) (spent bool, f *failure) {
	var attempts, from int64
	err := in.db.QueryRow(ctx, in.q(sqlCount), in.consumer, p.topic, p.id, offset, a.beganIn()).Scan(&attempts, &from)
	if errors.Is(err, pgx.ErrNoRows) { // the row was deleted, and no count is known; or the database is another one
		now, f := in.readDatabase(ctx)
		if f == nil {
			f = a.checkDatabase(now)
		}
		return false, f
	}
	if err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: counting a run of %s-%d: %w", p.topic, p.id, err))
	}
	return from == offset && attempts > int64(in.cfg.CrashAttempts), nil
}

// uncount takes back the count of a run that this process survived, even if ctx has ended. It reports whether it
// succeeded.
func (in *Inbox) uncount(ctx context.Context, p partitionName, offset int64) bool {
	return in.execLate(ctx, sqlUncount, in.consumer, p.topic, p.id, offset) == nil
}
