package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// CodeKilled is the code of an event that is parked because its effect ended the process again and again.
const CodeKilled = "killed"

// errKilled is the reason of an event whose counted runs are spent.
var errKilled = Terminal(CodeKilled, errors.New("its effect killed the process, or was running whenever something "+
	"else did, in every counted run"))

// partitionName names a partition of a topic.
type partitionName struct {
	topic string
	id    int32
}

// guard is what is known of a partition's progress since it was assigned. One Handle at a time uses it, but for tests
// that deliver the same events twice at the same time.
type guard struct {
	mu     sync.Mutex
	loaded bool
	span   span
	passed time.Time // when the progress was last moved
	effect time.Time // when an effect was last committed that the progress does not tell of; zero: none
	owed   int64     // where it is to be moved, when nothing else is decided; 0: it is there
	home   string    // the database that it began with; empty: not known yet
	noted  bool      // it is noted as halted while it waits for a person to repair the database
	trying bool      // that an event runs again after long pauses is noted
	marks  *marks    // how far its numbers are decided; nil: not known. A watermark's, and never changed

	most    int // events of one transaction, as conflicts allow; 0: any number
	calm    int // transactions without a conflict since
	patient int // so many of them, and the next ones are twice as large
}

func (g *guard) getMarks() *marks {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.marks
}

func (g *guard) setMarks(m *marks) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.marks = m
}

// width is how many events a transaction may have; 0: any number.
func (g *guard) width() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most
}

// narrow halves the transactions to come, after one of so many events has lost. A conflict may cost a deadlock_timeout,
// so that to try again whether larger ones get through must be rare where they do not.
func (g *guard) narrow(events int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calm = 0; events > 1 {
		g.most, g.patient = events/2, min(max(16, 2*g.patient), 1<<14)
	}
}

// widen takes note of a transaction that has not lost, of a call with so many events.
func (g *guard) widen(events int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calm++; g.most == 0 || g.calm < g.patient {
		return
	}
	if g.most, g.calm = g.most*2, 0; g.most >= events {
		g.most, g.patient = 0, 0
	}
}

// setNoted notes whether the partition is noted as halted, and returns what it was.
func (g *guard) setNoted(on bool) (was bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, g.noted = g.noted, on
	return was
}

// setTrying has the next transaction that decides something move the progress, which takes the note back.
func (g *guard) setTrying() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trying = true
}

// unfinished holds the range that an earlier process left.
func (g *guard) unfinished() span {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.span
}

// decided takes over what came of the events from offset on.
func (g *guard) decided(outcomes []Outcome, offset int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.span.decided(offset, slices.ContainsFunc(outcomes, func(o Outcome) bool { return o != Duplicate }))
}

// progressEvery is how far inbox_progress may be behind what is decided. Moved with every transaction its row would be
// a new version each, which a pinned snapshot keeps.
const progressEvery = 10 * time.Second

// began is the database that the partition began with.
func (g *guard) began() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.home
}

// stays compares the database that a transaction met with the one that the partition began with. It fails once: who
// goes on all the same, as callers that are no consumer do, goes on in the new one.
func (g *guard) stays(home string) *failure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.home == home {
		return nil
	}
	err := &MovedError{From: g.home, To: home}
	g.home, g.loaded, g.marks, g.owed, g.effect = "", false, nil, 0, time.Time{}
	return &failure{kind: moved, err: err}
}

func (g *guard) passIsDue() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trying || time.Since(g.passed) >= progressEvery
}

// hasPassed notes that everything before next is decided, with these outcomes, and whether the progress was moved there
// with it.
func (g *guard) hasPassed(next int64, moved bool, out []Outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.owed = next; {
	case moved:
		g.passed, g.owed, g.trying, g.effect = time.Now(), 0, false, time.Time{}
	case slices.Contains(out, Applied):
		g.effect = time.Now()
	}
}

// sinceEffect is how many seconds ago an effect was last committed, with a transaction that has these outcomes; nil:
// none since the progress was last moved.
func (g *guard) sinceEffect(out []Outcome) *float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	var seconds float64
	switch {
	case slices.Contains(out, Applied):
	case g.effect.IsZero():
		return nil
	default:
		seconds = time.Since(g.effect).Seconds()
	}
	return &seconds
}

// owes is where the progress is to be moved in which database, when nothing else is decided; 0: it is there.
func (g *guard) owes() (next int64, home string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owed, g.home
}

// Revoked implements [Handler]: what was decided since the progress was last moved is written down, for whoever comes
// next.
func (h *handler) Revoked(ctx context.Context, topic string, partition int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	p := partitionName{topic, partition}
	if err := h.account(ctx, p, h.guards.get(p)); err != nil {
		h.log.Warn("inbox: the account of a partition that is given away stays some seconds behind", "topic", topic,
			"partition", partition, "error", err)
	}
}

// accounts moves the progress of partitions that have become idle.
func (in *Inbox) accounts(ctx context.Context) error {
	in.handlers.Lock()
	all := slices.Clone(in.handlers.all)
	in.handlers.Unlock()
	var errs []error
	for _, h := range all {
		for p, g := range h.guards.due() {
			errs = append(errs, in.account(ctx, p, g))
		}
	}
	return errors.Join(errs...)
}

// account moves the progress to where it is owed, in the database in which that was decided.
func (in *Inbox) account(ctx context.Context, p partitionName, g *guard) error {
	next, home := g.owes()
	if next == 0 {
		return nil
	}
	_, err := in.db.Exec(ctx, in.q(sqlAccount), in.consumer, p.topic, p.id, next, home, g.sinceEffect(nil))
	if err != nil {
		return fmt.Errorf("inbox: moving the progress of %s-%d: %w", p.topic, p.id, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.passed = time.Now(); g.owed == next {
		g.owed, g.effect = 0, time.Time{}
	}
	return nil
}

// guards are the guards of a handler.
type guards struct {
	mu sync.Mutex
	of map[partitionName]*guard
}

func (g *guards) get(p partitionName) *guard {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[partitionName]*guard{}
	}
	if g.of[p] == nil {
		g.of[p] = &guard{span: span{armed: true}}
	}
	return g.of[p]
}

// due are those whose progress has not moved for a while.
func (g *guards) due() map[partitionName]*guard {
	g.mu.Lock()
	defer g.mu.Unlock()
	due := maps.Clone(g.of)
	maps.DeleteFunc(due, func(_ partitionName, one *guard) bool { return !one.passIsDue() })
	return due
}

func (g *guards) forget(p partitionName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, p)
}

// load reads how far an earlier process had come.
func (in *Inbox) load(ctx context.Context, p partitionName, g *guard) (f *failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.loaded {
		return nil
	}
	if g.home == "" {
		if f = in.askHome(ctx, &g.home); f != nil {
			return f
		}
	}
	from, to, attempts, _, err := in.readProgress(ctx, p)
	if err != nil {
		return in.classify(ctx, err)
	}
	if g.span.from, g.span.to = 0, 0; from < to {
		g.span.from, g.span.to = from, to
		in.log.Warn("inbox: an earlier process ended within this range: its events run one at a time, counted",
			"topic", p.topic, "partition", p.id, "from", from, "to", to, "attempts", attempts)
	}
	g.loaded = true
	return nil
}

// Progress is the offset up to which everything of a partition is decided for certain, by the database that the effects
// are in; it may be some seconds behind. A group whose committed offset is ahead of it by more has been told of effects
// that this database does not have: it was restored. known is false while the inbox has decided nothing of the
// partition.
func (in *Inbox) Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error) {
	next, _, _, known, err = in.readProgress(ctx, partitionName{topic, partition})
	return next, known, err
}

// Progress is [Inbox.Progress], and notes which database answered: one that takes over later may know less.
func (h *handler) Progress(ctx context.Context, topic string, partition int32) (next int64, known bool, err error) {
	var home string
	// First: if the database changes in between, the account is the new one's, and a change is noticed too much and not
	// too little.
	if f := h.askHome(ctx, &home); f != nil {
		return 0, false, f.err
	}
	g := h.guards.get(partitionName{topic, partition})
	g.mu.Lock()
	g.home = home
	g.mu.Unlock()
	return h.Inbox.Progress(ctx, topic, partition)
}

func (in *Inbox) askHome(ctx context.Context, home *string) *failure {
	if err := in.db.QueryRow(ctx, in.q(sqlHome)).Scan(home); err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: asking which database this is: %w", err))
	}
	return nil
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

// writeRange puts down the range of the batch that comes, in a transaction of its own.
func (in *Inbox) writeRange(ctx context.Context, p partitionName, g *guard, from, to int64) *failure {
	tag, err := in.db.Exec(ctx, in.q(sqlRange), in.consumer, p.topic, p.id, from, to, g.began())
	if err == nil && tag.RowsAffected() == 0 {
		return g.stays("another database")
	}
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: writing the range of %s-%d: %w", p.topic, p.id, err))
	}
	return nil
}

// count commits that the event at offset is about to run. Spent: it was counted too often already.
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

// uncount takes the count of a run back that this process outlived, also when ctx has ended. False: it could not be
// told.
func (in *Inbox) uncount(ctx context.Context, p partitionName, offset int64) bool {
	return in.execLate(ctx, sqlUncount, in.consumer, p.topic, p.id, offset) == nil
}
