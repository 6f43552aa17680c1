package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// CodeKilled is the code of an event that is parked because its process died during each of its counted runs.
const CodeKilled = "killed"

// errKilled is the cause for an event without counted runs left.
var errKilled = outcome.Terminal(CodeKilled, errors.New("its effect killed the process, or was running whenever "+
	"something else did, in every counted run"))

// progressTarget is the offset to which a transaction advances the progress of a partition.
type progressTarget struct {
	partitionName
	next    int64
	account account   // up to next
	out     []Outcome // of the transaction's events; nil: no effect was applied
}

// Revoked implements [Handler]: it writes the progress that is not yet stored, for the next owner.
func (h *handler) Revoked(ctx context.Context, topic string, partition int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	p := partitionName{topic, partition}
	defer h.assignments.forget(p)
	if err := h.writeProgress(ctx, p, h.assignments.get(p)); err != nil {
		h.log.Warn("inbox: the progress of a partition that is given away stays some seconds behind", "topic", topic,
			"partition", partition, "error", err)
	}
}

// Absent implements [Handler]: the progress advances past the offsets when it is next written.
func (h *handler) Absent(topic string, partition int32, from, to int64) {
	h.assignments.get(partitionName{topic, partition}).addAbsent(from, to)
}

// writeIdleProgress writes the progress of partitions that became idle.
func (in *Inbox) writeIdleProgress(ctx context.Context) error {
	in.handlers.Lock()
	all := slices.Clone(in.handlers.all)
	in.handlers.Unlock()
	var errs []error
	for _, h := range all {
		for p, a := range h.assignments.due() {
			// What the database has lost keeps no other partition waiting: Resumed tells the consumer of it.
			if err := in.writeProgress(ctx, p, a); !isDatabaseChanged(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// writeProgress stores the current progress, but only in the database in which the events were decided.
func (in *Inbox) writeProgress(ctx context.Context, p partitionName, a *assignment) error {
	if a.hasAbsent() {
		if f := in.load(ctx, p, a); f != nil {
			return f.err
		}
		before, after := a.pass()
		in.missing(p, before, after, after.next)
	}
	next, n, database, log := a.unwrittenProgress()
	if next == 0 {
		return nil
	}
	tag, err := in.db.Exec(ctx, in.q(sqlWriteProgress), in.consumer, p.topic, p.id, next, database, a.sinceEffect(nil),
		log, n, a.storedAt())
	if err != nil {
		return fmt.Errorf("inbox: moving the progress of %s-%d: %w", p.topic, p.id, err)
	}
	if tag.RowsAffected() == 0 {
		// The next transaction of the partition returns the error to the consumer.
		switch lost, err := in.lostProgress(ctx, in.db, p, a); {
		case err != nil:
			return err
		case lost != nil:
			return lost
		}
	}
	a.setWritten(next)
	return nil
}

// pass advances the progress in a deciding transaction.
func (in *Inbox) pass(ctx context.Context, conn *pgx.Conn, target *progressTarget, a *assignment) *failure {
	tag, err := conn.Exec(ctx, in.q(sqlPass), in.consumer, target.topic, target.id, target.next,
		a.sinceEffect(target.out), a.logID(), target.account.upTo(target.next), a.storedAt())
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: moving the progress of %s-%d: %w", target.topic, target.id, err))
	}
	if tag.RowsAffected() == 0 {
		return in.checkProgress(ctx, conn, target.partitionName, a)
	}
	return nil
}

// checkProgress compares the row of a partition that was not written with what this process knows to be stored. The row
// may be ahead, after another owner or an operator's skip. If it is gone or behind, the database has lost it, and may
// have lost effects with it; or another process reads again, and this one owns the partition no longer.
func (in *Inbox) checkProgress(ctx context.Context, on querier, p partitionName, a *assignment) *failure {
	lost, err := in.lostProgress(ctx, on, p, a)
	switch {
	case err != nil:
		return in.classify(ctx, err)
	case lost != nil:
		return a.checkDatabase(lost.To)
	}
	return nil
}

// lostHome compares the database with the one in which the partition began, and its row with what is known to be
// stored.
func (in *Inbox) lostHome(ctx context.Context, p partitionName, a *assignment) *failure {
	now, f := in.readDatabase(ctx)
	if f == nil {
		f = a.checkDatabase(now)
	}
	if f == nil {
		f = in.checkProgress(ctx, in.db, p, a)
	}
	return f
}

func (in *Inbox) lostProgress(ctx context.Context, on querier, p partitionName, a *assignment) (*DatabaseChangedError,
	error,
) {
	row, err := in.readProgress(ctx, on, p)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost(p, row), nil
}

// lost compares the row of a partition with what this process knows to be stored. Its caller holds mu.
func (a *assignment) lost(p partitionName, row progressRow) *DatabaseChangedError {
	now := ""
	switch {
	case !row.known && a.stored >= 0:
		now = "gone"
	case a.loaded && row.known && ((row.log == nil) != (a.log == nil) || a.log != nil && *row.log != *a.log):
		now = "of another log of the topic"
	case row.known && row.from < a.stored:
		now = fmt.Sprintf("%d, unless another process reads it again", row.from)
	default:
		return nil
	}
	return &DatabaseChangedError{
		From: a.database,
		To: fmt.Sprintf("%s, where the progress of %s-%d, which was %d, is %s", a.database, p.topic, p.id, a.stored,
			now),
	}
}

// load reads the progress of an earlier process.
func (in *Inbox) load(ctx context.Context, p partitionName, a *assignment) *failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loaded {
		return nil
	}
	database := a.database
	if database == "" {
		var f *failure
		if database, f = in.readDatabase(ctx); f != nil {
			return f
		}
	}
	row, err := in.readProgress(ctx, in.db, p)
	if err != nil {
		return in.classify(ctx, err)
	}
	if lost := a.lost(p, row); lost != nil && a.database != "" { // since the partition began
		return &failure{kind: databaseChanged, err: lost}
	}
	a.skipped = skipped{}
	if row.log != nil {
		if a.skipped, err = in.readSkipped(ctx, p); err != nil {
			return in.classify(ctx, err)
		}
	}
	if a.stored = -1; row.known {
		a.stored = row.from
	}
	if a.span.from, a.span.to = 0, 0; row.from < row.to {
		a.span.from, a.span.to = row.from, row.to
		in.log.Warn("inbox: an earlier process ended within this range: its events run one at a time, counted",
			"topic", p.topic, "partition", p.id, "from", row.from, "to", row.to, "attempts", row.attempts)
	}
	a.database, a.loaded, a.log, a.account = database, true, row.log, account{row.begun, row.from, row.accounted}
	return nil
}

// Progress returns what the database of the effects knows of a partition. If the group's committed offset is further
// ahead, the database has lost effects: it was restored.
func (in *Inbox) Progress(ctx context.Context, topic string, partition int32) (Progress, error) {
	row, err := in.readProgress(ctx, in.db, partitionName{topic, partition})
	if err != nil {
		return Progress{}, err
	}
	at := Progress{Kept: true, Next: row.from, Beginning: Beginning{Offset: row.began, Partitions: row.seen}}
	if !row.known {
		at.Next = -1
		if err = in.db.QueryRow(ctx, in.q(sqlSeen), in.consumer, topic, in.cfg.Program).Scan(&at.Partitions, &row.log,
			&at.Beside); err != nil {
			return Progress{}, fmt.Errorf("inbox: reading what is known of topic %s: %w", topic, err)
		}
	}
	if row.log != nil {
		if at.Log, err = uuid.Parse(*row.log); err != nil {
			return Progress{}, fmt.Errorf("inbox: the log of %s-%d: %w", topic, partition, err)
		}
	}
	return at, nil
}

// Progress is [Inbox.Progress]. It also records which database answered: one that takes over later may know less.
func (h *handler) Progress(ctx context.Context, topic string, partition int32) (Progress, error) {
	// Read the database first. If it changes in between, the progress is the new one's, and at worst a change is
	// reported needlessly. The other order could miss a change.
	database, f := h.readDatabase(ctx)
	if f != nil {
		return Progress{}, f.err
	}
	at, err := h.Inbox.Progress(ctx, topic, partition)
	if err == nil {
		a := h.assignments.get(partitionName{topic, partition})
		a.mu.Lock()
		a.database, a.stored = database, at.Next
		a.mu.Unlock()
	}
	return at, err
}

// Begin implements [Handler]. It fails with a [*DatabaseChangedError] if the database is another one than Progress
// asked, or has lost the progress since.
func (h *handler) Begin(ctx context.Context, topic string, partition int32, next int64, b Beginning) error {
	p := partitionName{topic, partition}
	a := h.assignments.get(p)
	var log *string
	if b.Log != uuid.Nil {
		id := b.Log.String()
		log = &id
	}
	if b.Decided > 0 {
		return h.readsAgain(ctx, p, a, log)
	}
	if b.Lost != "" {
		b.Reason = "records are lost: " + b.Lost // "inbox: list the progress" finds it by these words
	}
	before := a.storedAt()
	a.storing(-1, false)
	var from int64
	err := h.db.QueryRow(ctx, h.q(sqlBeginPartition), h.consumer, topic, partition, next, log, b.Offset, b.Reason,
		b.Partitions, a.beganIn(), b.Cut).Scan(&from)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return a.checkDatabase("another database").err
	case err != nil:
		return fmt.Errorf("inbox: beginning %s-%d: %w", topic, partition, err)
	case next < 0 && from < before: // it was to stay
		return a.checkDatabase(fmt.Sprintf("the same with a progress of %d instead of %d", from, before)).err
	}
	a.reload()
	a.storing(from, true)
	return nil
}

func (in *Inbox) readDatabase(ctx context.Context) (database string, f *failure) {
	if err := in.db.QueryRow(ctx, in.q(sqlHome)).Scan(&database); err != nil {
		return "", in.classify(ctx, fmt.Errorf("inbox: asking which database this is: %w", err))
	}
	return database, nil
}

// server is a server since its start. A primary keeps its system identifier and its timeline until it starts again, and
// a standby decides nothing, so the start stands for both, and costs a transaction next to nothing.
type server struct {
	started  int64
	database string
}

// databaseOf returns the database of the transaction that is open on conn. What is known of its server, by its start,
// can only confirm the database in which the partition began: a difference is asked for again, since inbox_server
// answers otherwise while the server refuses it its identifier.
func (in *Inbox) databaseOf(ctx context.Context, conn *pgx.Conn, started int64, began string) (string, error) {
	if known := in.server.Load(); known != nil && *known == (server{started, began}) {
		return began, nil
	}
	now := &server{started: started}
	if err := conn.QueryRow(ctx, in.q(sqlHome)).Scan(&now.database); err != nil {
		return "", fmt.Errorf("inbox: asking which database this is: %w", err)
	}
	in.server.Store(now)
	return now.database, nil
}

// DatabaseChangedError is returned by a handler when its database, or the database's timeline, is not the one in which
// the handler began a partition, or when the partition's progress or decided numbers in it went back, or are gone: a
// standby has taken over, a backup was restored, or rows were deleted. The database may lack effects whose offsets are
// committed. It has decided nothing of the rest of the batch. A consumer restarts its partitions from the progress of
// the database. Other callers may call Handle again; they must find the event to start from, see [Inbox.Progress].
type DatabaseChangedError struct {
	From, To string // system identifier and timeline; in To also what became of the progress, or of a number
}

// Error returns a message with both databases.
func (e *DatabaseChangedError) Error() string {
	return fmt.Sprintf("inbox: the database is another one than before (%s, now %s): a standby took over, a "+
		"backup was restored, or rows were deleted; it may have forgotten what was decided", e.From, e.To)
}

// progressRow is the row of a partition in inbox_progress.
type progressRow struct {
	known    bool // there is a row
	from, to int64
	attempts int32
	log      *string // the topic's id; nil: not known
	begun    bool    // by a consumer, at began
	began    int64
	// accounted is the account up to from.
	accounted int64
	seen      int32
}

func (in *Inbox) readProgress(ctx context.Context, on querier, p partitionName) (row progressRow, err error) {
	err = on.QueryRow(ctx, in.q(sqlProgress), in.consumer, p.topic, p.id).Scan(&row.from, &row.to, &row.attempts,
		&row.log, &row.began, &row.seen, &row.begun, &row.accounted)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return row, fmt.Errorf("inbox: reading the progress of %s-%d: %w", p.topic, p.id, err)
	}
	row.known = err == nil
	return row, nil
}

// writeRange stores the range of the next batch, in a transaction of its own.
func (in *Inbox) writeRange(ctx context.Context, p partitionName, a *assignment, first *event.Event,
	to int64,
) *failure {
	stored := a.storedAt()
	a.storing(first.Position.Offset, false)
	tag, err := in.db.Exec(ctx, in.q(sqlRange), in.consumer, p.topic, p.id, first.Position.Offset, to, a.beganIn(),
		a.logID(), a.accounted().at(first).upTo(first.Position.Offset), stored)
	if err == nil && tag.RowsAffected() == 0 {
		return a.checkDatabase("another database, another log of the topic, or a progress that was lost")
	}
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: writing the range of %s-%d: %w", p.topic, p.id, err))
	}
	a.storing(first.Position.Offset, true)
	return nil
}

// count commits that an event is about to run. spent: the event has no counted run left.
func (in *Inbox) count(ctx context.Context, p partitionName, a *assignment, e *event.Event) (spent bool, f *failure) {
	var attempts, from int64
	offset := e.Position.Offset
	err := in.db.QueryRow(ctx, in.q(sqlCount), in.consumer, p.topic, p.id, offset, a.beganIn(), a.logID(),
		a.accounted().at(e).upTo(offset), a.storedAt()).Scan(&attempts, &from)
	if errors.Is(err, pgx.ErrNoRows) {
		// The database, or the topic's log, is another one, or has lost the row.
		return false, in.lostHome(ctx, p, a)
	}
	if err != nil {
		return false, in.classify(ctx, fmt.Errorf("inbox: counting a run of %s-%d: %w", p.topic, p.id, err))
	}
	a.storing(from, true)
	return from == offset && attempts > int64(in.cfg.CrashAttempts), nil
}

// uncount takes back the count of a run that this process survived, even if ctx has ended. It reports whether it
// succeeded.
func (in *Inbox) uncount(ctx context.Context, p partitionName, offset int64) bool {
	err := in.execLate(ctx, sqlUncount, in.consumer, p.topic, p.id, offset)
	if err != nil {
		in.log.Warn("inbox: the count of a run that this process survived could not be taken back", "topic", p.topic,
			"partition", p.id, "offset", offset, "error", err)
	}
	return err == nil
}
