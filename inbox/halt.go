package inbox

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// haltHere ends Handle at the next event.
func (b *batch) haltHere(ctx context.Context, err error) error {
	if b.part {
		e := bare(b.events[b.pos])
		b.in.log.Warn("inbox: an event will halt its partition, once the events of other keys are decided",
			failureAttrs(&e, err)...)
		return err // the batch comes to the event then
	}
	b.stops()
	return b.halt(ctx, err)
}

// halt ends Handle at the suspect.
func (b *batch) halt(ctx context.Context, err error) error {
	e := bare(b.events[b.suspect])
	h := &HaltError{Event: e, Attempts: b.runs, Err: err}
	if f := b.noteHalt(ctx, &e, err); f != nil {
		return f.err
	}
	b.in.log.Error("inbox: an event halts its partition", append(failureAttrs(&e, err), "attempts", h.Attempts)...)
	if do := b.in.cfg.Observer.Halted; do != nil {
		do(h)
	}
	return h
}

// rejected logs that the partition waits for an operator. At every tenth retry it also records the wait in
// inbox_progress. It fails if the database has lost the row: what waits there is not the first event that it lacks.
func (b *batch) rejected(ctx context.Context, err error) *failure {
	e := bare(b.events[b.pos])
	if b.retries%10 == 1 {
		b.in.log.Error("inbox: the database rejects a statement; the partition waits and tries again",
			failureAttrs(&e, err)...)
	}
	if b.retries%10 == 0 {
		b.assignment.setHaltNoted(true)
		return b.noteHalt(ctx, &e, outcome.Terminal(CodeRejected, err))
	}
	return nil
}

// noteHalt records in inbox_progress that a partition waits for an operator, who sees it there and can resume it, even
// if ctx has ended. The partition halts even if the database does not answer. If that is another one, or has lost the
// row, noteHalt writes nothing and fails.
func (b *batch) noteHalt(ctx context.Context, e *event.Event, cause error) *failure {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	tag, err := b.in.db.Exec(ctx, b.in.q(sqlHalted), b.in.consumer, b.name.topic, b.name.id, e.Position.Offset,
		storable(codeOf(cause), 255), storable(cause.Error(), 2000), b.assignment.beganIn(), b.assignment.storedAt())
	if err == nil && tag.RowsAffected() == 0 {
		f := b.in.lostHome(ctx, b.name, b.assignment)
		if f == nil || f.kind == databaseChanged {
			return f
		}
		err = f.err
	}
	if err != nil {
		b.in.log.Warn("inbox: a halt could not be written down", "topic", b.name.topic, "partition", b.name.id,
			"error", err)
	}
	return nil
}

// unhalt clears the recorded halts with that code. If all is false, it does so only if no list is full.
func (in *Inbox) unhalt(ctx context.Context, code string, all bool) error {
	_, err := in.db.Exec(ctx, in.q(sqlUnhalt), in.consumer, code, all)
	return err
}

// Resumed implements [Handler]. A row that this process moves meanwhile is compared the next time.
func (h *handler) Resumed(ctx context.Context, topic string, partition int32) (bool, error) {
	p := partitionName{topic, partition}
	a := h.assignments.find(p)
	moves := 0
	if a != nil {
		moves = a.movesNow()
	}
	var resumed bool
	var now string
	var from *int64
	var row progressRow
	err := h.db.QueryRow(ctx, h.q(sqlResumed), h.consumer, topic, partition).Scan(&resumed, &now, &from, &row.log)
	if err != nil {
		return false, fmt.Errorf("inbox: asking whether %s-%d is resumed: %w", topic, partition, err)
	}
	if row.known = from != nil; row.known {
		row.from = *from
	}
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch lost := a.lost(p, row); {
		case a.database == "", a.stored < 0, a.moves != moves:
		case a.database != now:
			return false, &DatabaseChangedError{From: a.database, To: now}
		case lost != nil:
			return false, lost
		}
	}
	return row.known && resumed, nil
}
