package inbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// handler is the Handler that Each and Batch return.
type handler struct {
	*Inbox
	run         runner
	assignments assignments

	// For releases, of which only one runs at a time. countLeft is the id of the parked row that has, or may have, a
	// count by this handler that was not taken back; 0: none.
	waits     releaseWaits
	countLeft int64
}

// Prepare is [Inbox.Prepare]. It also records the Kafka group, for people who look at the database.
func (h *handler) Prepare(ctx context.Context, group string) error {
	h.programs.Lock()
	h.programs.group = group
	h.programs.Unlock()
	return h.Inbox.Prepare(ctx)
}

// Assigned implements [Handler]: the next batch is the first one after an assignment.
func (h *handler) Assigned(topic string, partition int32) {
	h.assignments.forget(partitionName{topic, partition})
	_ = h.consumes(topic, h) // Handle returns the error
}

// Window implements [Handler]. It is zero if a short window is allowed or if ids do not decide.
func (h *handler) Window() time.Duration {
	if h.cfg.AllowShortWindow || h.cfg.Dedup != ByID {
		return 0
	}
	return h.cfg.Window
}

// Handle implements [Handler].
func (h *handler) Handle(ctx context.Context, events []event.Event) ([]Outcome, error) {
	if len(events) == 0 {
		return nil, ctx.Err()
	}
	name := partitionName{events[0].Topic, events[0].Position.Partition}
	if err := h.consumes(name.topic, h); err != nil {
		return make([]Outcome, len(events)), err
	}
	b := &batch{
		walk: startWalk(len(events)), in: h.Inbox, run: h.run, events: events, out: make([]Outcome, len(events)),
		name: name, assignment: h.assignments.get(name),
	}
	err := b.finish(ctx)
	if err != nil {
		b.leave(ctx)
	}
	return b.out, err
}

// batch is the state of one call of Handle.
type batch struct {
	walk
	in     *Inbox
	run    runner
	events []event.Event
	out    []Outcome

	name       partitionName
	assignment *assignment
	skip       map[uuid.UUID]bool
	news       bool // an effect is to run among events that the progress proves to be decided
	part       bool // it has some keys of a batch: the batch decides when it begins, and has the progress

	retryPace backoff.BackOff // of retries that no event caused; nil: nothing fails
	retries   int             // consecutive retries that no event caused
	losses    int             // consecutive sessions that ended in the effect
	served    bool            // the database served others when it had rejected the last statement

	// For the suspect.
	retryableSince time.Time
	pace           backoff.BackOff
	doom           error // why the suspect is given up
}

// finish runs transactions until all events are decided.
func (b *batch) finish(ctx context.Context) error {
	defer b.assignment.waited(b)
	for b.pos < len(b.events) {
		late := time.AfterFunc(crowdedAfter, b.in.leaked)
		err := b.step(ctx)
		late.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// step runs one transaction and decides what comes next. An error ends Handle.
func (b *batch) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := time.Now()
	var out []Outcome
	var f *failure
	if err := b.in.Prepare(ctx); err != nil {
		// On the first use: tables or rights are missing, or the consumer is registered with another Dedup.
		if f = b.in.classify(ctx, err); f.kind == rejected {
			return f.err
		}
	}
	var old int
	if f == nil && !b.part {
		old, f = b.begin(ctx)
	}
	switch {
	case f != nil:
	case old > 0:
		b.limit = b.pos + old
		out = slices.Repeat([]Outcome{Duplicate}, old)
	case b.givesUp():
		if b.in.cfg.OnFailure == Halt {
			return b.halt(ctx, b.doom)
		}
		out = make([]Outcome, 1)
		b.limit = b.pos + 1
		out[0], f = b.in.park(ctx, &b.events[b.pos], b.doom, b.runs, b.assignment, b.progressTarget(nil))
	case b.spreads():
		if f = b.spread(ctx); f == nil {
			return nil
		}
	default:
		counted := b.reach(b.assignment.unfinished(), b.offset)
		if width := b.assignment.width(); width > 0 {
			b.limit = min(b.limit, b.pos+width)
		}
		if b.in.apart.Load() {
			b.limit = b.pos + 1
		}
		b.limit = b.beforeOld()
		of, _ := b.assignment.provenEvents()
		b.within(of, b.offset)
		out = make([]Outcome, b.limit-b.pos)
		f = b.attempt(ctx, counted, out)
	}
	if f == nil {
		b.done(ctx, out, time.Since(start))
		return nil
	}
	f.index += b.pos // not used for -1 and for kinds without an index
	return b.after(ctx, f)
}

// begin reads what the next transaction needs of its partition. It returns how many events the progress proves to be
// decided.
func (b *batch) begin(ctx context.Context) (old int, f *failure) {
	if f = b.in.load(ctx, b.name, b.assignment); f != nil {
		if lost, ok := errors.AsType[*DatabaseChangedError](f.err); ok {
			f = b.assignment.checkDatabase(lost.To)
		}
		return 0, f
	}
	if f = b.in.dedup.ready(ctx, b.name, b.assignment); f != nil {
		return 0, f
	}
	return b.provenOld(ctx)
}

func (b *batch) offset(i int) int64 { return b.events[i].Position.Offset }

// attempt runs one transaction of effects: next to others, or counted and alone. The count is in the row only while the
// effect may run, so only this run, or the death of the process during it, counts against the event.
func (b *batch) attempt(ctx context.Context, counted bool, out []Outcome) *failure {
	offset := b.offset(b.pos)
	writes := !counted && b.writesRange()
	// The range would advance the progress back, and with it what it proves. It is written once an effect is to run.
	of, _ := b.assignment.provenEvents()
	only := writes && !b.news && of.has(offset)
	if writes && !only {
		if f := b.writeRange(ctx); f != nil {
			return f
		}
	}
	leave, err := b.in.gate.begin(ctx, b.in.db, counted)
	if err != nil {
		return &failure{kind: canceled, err: err}
	}
	defer leave()
	if counted && !b.counted {
		spent, f := b.in.count(ctx, b.name, b.assignment, &b.events[b.pos])
		if f != nil {
			// After a lost answer it is unknown whether the run was counted. Nothing ran, so the count is taken back.
			b.counted = f.unknown() && !b.in.uncount(ctx, b.name, offset)
			return f
		}
		if spent {
			b.spent(b.in.cfg.CrashAttempts)
			b.doom = errKilled
			return &failure{kind: stale} // the next step gives up the event
		}
		b.counted = true
	}
	w := &work{
		events: b.events[b.pos:b.limit], skip: b.skip, careful: b.careful, run: b.run, out: out,
		assignment: b.assignment, only: only,
	}
	target := b.progressTarget(out)
	if counted || b.progressIsDue() {
		w.progress = target
	}
	f := b.in.decide(ctx, w)
	b.news = b.news || w.news
	if f == nil && target != nil {
		b.in.missing(b.name, b.assignment.accounted(), target.account, b.offset(b.pos))
		b.assignment.setDecided(target, w.progress != nil && !w.set)
	}
	if counted && (f == nil || b.in.uncount(ctx, b.name, offset)) {
		b.counted = false
	}
	return f
}

// writesRange reports whether the range of the events is to be written before they run.
func (b *batch) writesRange() bool {
	return !b.part && !b.written && b.assignment.unfinished().writes(b.offset(b.pos))
}

func (b *batch) writeRange(ctx context.Context) *failure {
	f := b.in.writeRange(ctx, b.name, b.assignment, &b.events[b.pos], b.offset(len(b.events)-1)+1)
	b.written = f == nil
	return f
}

func (b *batch) progressIsDue() bool { return b.written || b.assignment.progressIsDue() }

// progressTarget returns the progress after a transaction with these outcomes; nil: the batch that the events are a
// part of has it.
func (b *batch) progressTarget(out []Outcome) *progressTarget {
	if b.part {
		return nil
	}
	return &progressTarget{
		b.name, b.events[b.limit-1].Position.Offset + 1,
		b.assignment.accounted().decided(b.events[b.pos:b.limit]), out,
	}
}

// missing reports offsets between two accounts, up to an offset, that nothing accounts for.
func (in *Inbox) missing(p partitionName, before, after account, to int64) {
	if n := after.missing(before); n > 0 {
		in.log.Error("inbox: events were passed without being decided: their effects may be missing", "topic",
			p.topic, "partition", p.id, "from", before.next, "to", to, "unaccounted", n)
	}
}

// done stores the outcomes of a committed transaction.
func (b *batch) done(ctx context.Context, out []Outcome, took time.Duration) {
	b.in.outage.up()
	b.noteTried(ctx)
	if b.assignment.setHaltNoted(false) {
		b.assignment.setHaltNoted(b.in.unhalt(ctx, CodeRejected, true) != nil)
	}
	var n [Quarantined + 1]int
	for i, e := range b.events[b.pos:b.limit] {
		if at := &b.out[b.pos+i]; *at == Undecided { // otherwise a part has decided it, and this is the repeat
			*at = out[i]
			n[out[i]]++
		}
		delete(b.skip, e.ID) // by number, a later event may have the id of one that was skipped
	}
	b.in.rejections.applied(b.events[b.pos:], out)
	if !b.part {
		b.assignment.decided(b.events[b.pos:b.limit], out)
	}
	b.assignment.widen(len(b.events))
	b.retries, b.losses, b.served, b.retryPace = 0, 0, false, nil
	b.walk.done(len(b.events))
	if do := b.in.cfg.Observer.Handled; do != nil {
		do(HandledInfo{
			Topic: b.name.topic, Partition: b.name.id, Applied: n[Applied], Duplicate: n[Duplicate],
			Skipped: n[Skipped], Parked: n[Parked], Quarantined: n[Quarantined], Took: took,
		})
	}
}

// leave closes the range of a call that ends undecided: the process survived it, so the next owner need not count its
// events.
func (b *batch) leave(ctx context.Context) {
	if b.written {
		// If this fails, the next owner counts its runs, which only costs time.
		_ = b.in.execLate(ctx, sqlCloseRange, b.in.consumer, b.name.topic, b.name.id, b.offset(0),
			b.offset(len(b.events)-1)+1)
	}
}

func failureAttrs(e *event.Event, err error) []any {
	attrs := []any{
		"id", e.ID, "type", e.Type, "topic", e.Topic, "partition", e.Position.Partition, "offset",
		e.Position.Offset, "error", err,
	}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	return attrs
}

func (b *batch) retried(reason string, attempt int, wait time.Duration, err error) {
	if do := b.in.cfg.Observer.Retried; do != nil {
		e := &b.events[0]
		do(RetriedInfo{
			Topic: e.Topic, Partition: e.Position.Partition, Reason: reason, Attempt: attempt, Wait: wait,
			Err: err,
		})
	}
}
