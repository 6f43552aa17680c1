package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

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
	b.in.noteHalt(ctx, b.name, &e, err)
	b.in.log.Error("inbox: an event halts its partition", append(failureAttrs(&e, err), "attempts", h.Attempts)...)
	if do := b.in.cfg.Observer.Halted; do != nil {
		do(h)
	}
	return h
}

// rejected logs that the partition waits for an operator. At every tenth retry it also records the wait in
// inbox_progress.
func (b *batch) rejected(ctx context.Context, err error) {
	e := bare(b.events[b.pos])
	if b.retries%10 == 1 {
		b.in.log.Error("inbox: the database rejects a statement; the partition waits and tries again",
			failureAttrs(&e, err)...)
	}
	if b.retries%10 == 0 {
		b.assignment.setHaltNoted(true)
		b.in.noteHalt(ctx, b.name, &e, outcome.Terminal(CodeRejected, err))
	}
}

// noteHalt records in inbox_progress that a partition waits for an operator, who sees it there and can resume it. The
// partition halts even if noteHalt fails.
func (in *Inbox) noteHalt(ctx context.Context, p partitionName, e *event.Event, cause error) {
	err := in.execLate(ctx, sqlHalted, in.consumer, p.topic, p.id, e.Position.Offset, storable(codeOf(cause), 255),
		storable(cause.Error(), 2000))
	if err != nil {
		in.log.Warn("inbox: a halt could not be written down", "topic", p.topic, "partition", p.id, "error", err)
	}
}

// unhalt clears the recorded halts with that code. If all is false, it does so only if no list is full.
func (in *Inbox) unhalt(ctx context.Context, code string, all bool) error {
	_, err := in.db.Exec(ctx, in.q(sqlUnhalt), in.consumer, code, all)
	return err
}

// Resumed implements [Handler].
func (h *handler) Resumed(ctx context.Context, topic string, partition int32) (bool, error) {
	var resumed bool
	err := h.db.QueryRow(ctx, h.q(sqlResumed), h.consumer, topic, partition).Scan(&resumed)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inbox: asking whether %s-%d is resumed: %w", topic, partition, err)
	}
	return resumed, nil
}
