package soak

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
	"github.com/effectonce/effectonce/verify/roles"
)

// refusedTopics is the prefix of topics that do not exist.
const refusedTopics = "refused-"

// manyRefused is the number of these topics.
const manyRefused = 1000

// refuse appends an event to each of a thousand topics that do not exist; its undo discards the held events. Events of
// other topics must not wait for them.
func refuse(s *testbed, f fault) (func() error, error) {
	if err := s.appendRefused(manyRefused); err != nil {
		return nil, errors.Join(err, s.discardRefused()) // it may have been committed
	}
	var late outboxMark
	timer := time.AfterFunc(max(0, f.lasts-publishLimit), func() { late.set(s) })
	return func() error {
		timer.Stop()
		held, err := s.refused("outbox_held")
		s.t.Logf("%s: %d are held (%v)", f.kind, len(held), err)
		if err == nil && len(held) >= manyRefused/2 { // a relay may have been killed meanwhile
			s.tookEffect(f.kind)
			s.published(f, &late)
		}
		return s.discardRefused()
	}, nil
}

// appendRefused appends an event to each of n topics that do not exist, and never did.
func (x *testbed) appendRefused(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*sqlLimit)
	defer cancel()
	conn, err := x.connect(ctx, roles.Producer)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	events := make([]event.Event, n)
	infos := make([]history.Event, n)
	for i := range events {
		business := fmt.Sprintf("refused.%d", x.held.n.Add(1))
		events[i] = event.Event{
			ID: event.NewID(), Topic: refusedTopics + business, Key: business, Type: "Refused",
			ContentType: event.ContentTypeJSON, Payload: fmt.Appendf(nil, `{"business":%q,"canary":%q}`, business,
				roles.Canary),
		}
		infos[i] = tables.Describe(&events[i], 1, business)
	}
	if err := errors.Join(tables.Record(ctx, tx, infos...), outbox.Append(ctx, tx, events...)); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	op := x.note(history.Entry{Kind: history.KindAppend, Events: infos})
	err = tx.Commit(ctx)
	x.appended(op, err)
	return err
}

// refused returns the events of these topics in a table.
func (x *testbed) refused(table string) ([]history.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	rows, err := x.admin.Query(ctx, "select message_id, topic from "+table+" where topic like $1", refusedTopics+"%")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e history.Event, err error) {
		return e, row.Scan(&e.ID, &e.Topic)
	})
}

// discardRefused waits until all events of these topics are held, and discards them, as `relay topics discard` does.
// drain discards those that remain because another fault lasts too long.
func (x *testbed) discardRefused() error {
	for deadline := time.Now().Add(healLimit); time.Now().Before(deadline); await(
		time.Now().Add(200 * time.Millisecond)) {
		if leftover, err := x.discardSome(deadline); err == nil && leftover == 0 {
			return nil
		}
	}
	return nil
}

// discardSome discards held events of these topics until the deadline, and returns how many there were, held or not.
func (x *testbed) discardSome(deadline time.Time) (leftover int, err error) {
	o, err := operator.New(x.admin, "", "harness")
	if err != nil {
		return 0, err
	}
	held, err := x.refused("outbox_held")
	if err != nil {
		return 0, err
	}
	for _, e := range held {
		if time.Now().After(deadline) {
			break
		}
		if err := x.discardHeld(o, e.Topic, e.ID); err != nil && !errors.Is(err, operator.ErrNotHeld) {
			return 0, err
		}
	}
	waiting, err := x.refused("outbox_event")
	return len(held) + len(waiting), err
}

func (x *testbed) discardHeld(o *operator.Operator, topic string, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	op := x.note(history.Entry{
		Kind: history.KindOperate, Verb: "discard", Detail: "held", Topic: topic,
		IDs: []uuid.UUID{id},
	})
	_, err := o.DiscardHeld(ctx, topic, id, "the topic will never be there")
	done := history.Entry{Kind: history.KindOperated, Op: op, Outcome: history.OK}
	if err != nil {
		done.Outcome, done.Err = history.Unknown, err.Error()
	}
	x.note(done)
	return err
}
