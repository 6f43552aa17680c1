package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// CodeKilled is the code of an event that is parked because its effect ended the process again and again.
const CodeKilled = "killed"

// errKilled is the reason of an event whose counted runs are spent.
var errKilled = Terminal(CodeKilled, errors.New("its effect killed the process, or was running whenever something "+
	"else did, in every counted run"))

// progressTarget is where a transaction moves the progress of a partition.
type progressTarget struct {
	partitionName
	next int64
	out  []Outcome // of the transaction's events; nil: no effect was applied
}

// Revoked implements [Handler]: what was decided since the progress was last moved is written down for the next owner.
func (h *handler) Revoked(ctx context.Context, topic string, partition int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	p := partitionName{topic, partition}
	if err := h.writeProgress(ctx, p, h.assignments.get(p)); err != nil {
		h.log.Warn("inbox: the progress of a partition that is given away stays some seconds behind", "topic", topic,
			"partition", partition, "error", err)
	}
}

// writeIdleProgress moves the progress of partitions that have become idle.
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

// writeProgress moves the progress to what is decided, in the database in which that was decided.
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

// load reads how far an earlier process had come.
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

// Progress is the offset up to which everything of a partition is decided for certain, by the database that the effects
// are in; it may be some seconds behind. Where the offset that a group has committed is further ahead, the database has
// lost effects: it was restored. known is false while the inbox has decided nothing of the partition.
func (in *Inbox) Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error) {
	next, _, _, known, err = in.readProgress(ctx, partitionName{topic, partition})
	return next, known, err
}

// Progress is [Inbox.Progress], and notes which database answered: one that takes over later may know less.
func (h *handler) Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error) {
	// First: if the database changes in between, the progress is the new one's, and a change is noticed where there was
	// none, and not the other way round.
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

// MovedError is returned by a handler when its database is another one, or on another timeline, than the one with which
// it began a partition: a standby has taken over, or a backup was restored. It may have forgotten effects whose offsets
// are committed. Nothing of the batch was decided in it. A consumer begins its partitions anew, from where the database
// is. Other callers may call Handle again; from which event on is theirs to find out, see [Inbox.Progress].
type MovedError struct {
	From, To string // system identifier and timeline
}

// Error says what happened.
func (e *MovedError) Error() string {
	return fmt.Sprintf("inbox: the database is another one than before (%s, now %s): a standby took over, or a "+
		"backup was restored; it may have forgotten what was decided", e.From, e.To)
}

// readProgress reads the row of a partition; not known: there is none.
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

// writeRange writes the range of the next batch, in a transaction of its own.
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

// count commits that the event at offset is about to run. spent: it was counted too often already.
func (in *Inbox) count(ctx context.Context, p partitionName, offset int64) (spent bool, f *failure) {
	var attempts, from int64
	err := in.db.QueryRow(ctx, in.q(sqlCount), in.consumer, p.topic, p.id, offset).Scan(&attempts, &from)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil // somebody deleted the row: nothing is known
	}
	if err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: counting a run of %s-%d: %w", p.topic, p.id, err))
	}
	return from == offset && attempts > int64(in.cfg.CrashAttempts), nil
}

// uncount takes the count of a run back that this process outlived, also when ctx has ended, and reports whether it
// could.
func (in *Inbox) uncount(ctx context.Context, p partitionName, offset int64) bool {
	return in.execLate(ctx, sqlUncount, in.consumer, p.topic, p.id, offset) == nil
}
