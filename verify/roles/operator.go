package roles

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
)

// operate plays an operator who looks at parked events every half second, releases those that can succeed and discards
// the others.
func operate(ctx context.Context, p *process) error {
	out, err := operator.New(p.db, "", p.Name)
	if err != nil {
		return err
	}
	in, err := inboxoperator.New(p.db, "", Consumer, p.Name)
	if err != nil {
		return err
	}
	o := &person{process: p, out: out, in: in, draw: rand.New(rand.NewPCG(p.Seed, p.seed(0)))}
	for sleep.For(ctx, 500*time.Millisecond) == nil {
		o.round(ctx)
	}
	return nil
}

type person struct {
	*process
	out  *operator.Operator
	in   *inboxoperator.Operator
	draw *rand.Rand
}

// round runs all steps. The next round retries what failed.
func (o *person) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, transactionLimit)
	defer cancel()
	for _, step := range []func(context.Context) error{
		o.outboxKeys, o.outboxAlone, o.inboxKeys, o.inboxAlone,
		o.halted,
	} {
		if err := step(ctx); err != nil && ctx.Err() == nil {
			o.log.Info("an operator's step failed; retrying", "error", err)
		}
	}
}

// do records an action before and after. An event that is not parked any more is no error.
func (o *person) do(e history.Entry, act func() error) error {
	e.Kind = history.KindOperate
	op := o.record(e)
	err := act()
	done := history.Entry{Kind: history.KindOperated, Op: op, Outcome: history.OK}
	switch {
	case err == nil:
	case errors.Is(err, admin.ErrNotParked), errors.Is(err, admin.ErrReleasing),
		errors.Is(err, inboxoperator.ErrNotHalted):
		done.Outcome, done.Err, err = history.Failed, err.Error(), nil
	default:
		done.Outcome, done.Err = history.Unknown, err.Error()
	}
	o.record(done)
	return err
}

// outboxKeys releases keys of which the broker refused an event. It discards an event that is too large, which is the
// first of its list.
func (o *person) outboxKeys(ctx context.Context) error {
	keys, err := o.out.BlockedKeys(ctx, admin.BlockedFilter{})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.Releasing {
			continue
		}
		if k.Code == "MESSAGE_TOO_LARGE" && k.Head != nil {
			if err := o.discardOutbox(ctx, admin.ParkedFilter{MessageID: *k.Head}); err != nil {
				return err
			}
			continue // the next round releases the events behind it
		}
		e := history.Entry{Verb: "release", Detail: "outbox", Tenant: k.Tenant, Topic: k.Topic, Key: k.Key}
		if err := o.do(e, func() error {
			_, err := o.out.ReleaseKey(ctx, k.Tenant, k.Topic, k.Key, admin.Seen{}, "soak")
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (o *person) discardOutbox(ctx context.Context, f admin.ParkedFilter) error {
	events, err := o.out.Parked(ctx, f)
	if err != nil {
		return err
	}
	for _, e := range events {
		// The key keeps the code of the last refusal after its head was discarded. Release then instead of discarding
		// another event.
		verb, act := "discard", func() error {
			_, err := o.out.DiscardEvent(ctx, e.ID, "too large")
			return err
		}
		if e.Code != "MESSAGE_TOO_LARGE" || e.Attempts == 0 {
			verb, act = "release", func() error {
				_, err := o.out.ReleaseKey(ctx, e.Tenant, e.Topic, e.Key, admin.Seen{}, "soak")
				return err
			}
		}
		if err := o.do(history.Entry{
			Verb: verb, Detail: "outbox", IDs: []uuid.UUID{e.MessageID}, Tenant: e.Tenant,
			Topic: e.Topic, Key: e.Key,
		}, act); err != nil {
			return err
		}
	}
	return nil
}

func (o *person) outboxAlone(ctx context.Context) error {
	events, err := o.out.Parked(ctx, admin.ParkedFilter{})
	if err != nil {
		return err
	}
	for _, e := range events {
		if !e.Alone || e.Releasing {
			continue
		}
		verb, act := "release", func() error { return o.out.ReleaseEvent(ctx, e.ID, "soak") }
		if e.Code == "MESSAGE_TOO_LARGE" {
			verb, act = "discard", func() error {
				_, err := o.out.DiscardEvent(ctx, e.ID, "too large")
				return err
			}
		}
		if err := o.do(history.Entry{
			Verb: verb, Detail: "outbox", IDs: []uuid.UUID{e.MessageID}, Tenant: e.Tenant,
			Topic: e.Topic,
		}, act); err != nil {
			return err
		}
	}
	return nil
}

// inboxKeys releases keys whose event failed. It discards poison, usually after a futile release or two, as people do.
func (o *person) inboxKeys(ctx context.Context) error {
	keys, err := o.in.BlockedKeys(ctx, admin.BlockedFilter{})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.Releasing {
			continue
		}
		if k.Head != nil {
			if ok, err := o.discardApplied(ctx, admin.ParkedFilter{MessageID: *k.Head}); ok || err != nil {
				return err // the next round releases the events behind it
			}
		}
		if k.Code == "poison" && k.Head != nil && o.draw.Float64() < 0.5 {
			if err := o.discardInbox(ctx, admin.ParkedFilter{MessageID: *k.Head, Code: "poison"}); err != nil {
				return err
			}
		}
		e := history.Entry{
			Verb: "release", Detail: "inbox", Consumer: Consumer, Tenant: k.Tenant, Topic: k.Topic,
			Key: k.Key,
		}
		if err := o.do(e, func() error {
			_, err := o.in.ReleaseKey(ctx, k.Tenant, k.Topic, k.Key, admin.Seen{}, "soak")
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (o *person) discardInbox(ctx context.Context, f admin.ParkedFilter) error {
	events, err := o.in.Parked(ctx, f)
	if err != nil {
		return err
	}
	for _, e := range events {
		entry := history.Entry{
			Verb: "discard", Detail: "inbox", Consumer: Consumer, IDs: []uuid.UUID{e.MessageID},
			Tenant: e.Tenant, Topic: e.Topic, Key: e.Key,
		}
		if err := o.do(entry, func() error {
			_, err := o.in.DiscardEvent(ctx, e.ID, "poison")
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// discardApplied discards a parked event that was applied: a worker that deduplicates by watermark may take an event
// with another number for a new one.
func (o *person) discardApplied(ctx context.Context, f admin.ParkedFilter) (applied bool, err error) {
	if !o.ByWatermark {
		return false, nil
	}
	if err := o.db.QueryRow(ctx, isApplied, Consumer, f.MessageID.String()).Scan(&applied); err != nil || !applied {
		return false, err
	}
	return true, o.discardInbox(ctx, f)
}

// inboxAlone releases parked and quarantined events without a key that were not applied.
func (o *person) inboxAlone(ctx context.Context) error {
	events, err := o.in.Parked(ctx, admin.ParkedFilter{})
	if err != nil {
		return err
	}
	for _, e := range events {
		if !e.Alone || e.Releasing {
			continue
		}
		if e.Code == "poison" {
			if err := o.discardInbox(ctx, admin.ParkedFilter{ID: e.ID}); err != nil {
				return err
			}
			continue
		}
		if ok, err := o.discardApplied(ctx, admin.ParkedFilter{ID: e.ID, MessageID: e.MessageID}); ok ||
			err != nil {
			return err
		}
		entry := history.Entry{
			Verb: "release", Detail: "inbox", Consumer: Consumer, IDs: []uuid.UUID{e.MessageID},
			Tenant: e.Tenant, Topic: e.Topic,
		}
		if err := o.do(entry, func() error { return o.in.ReleaseEvent(ctx, e.ID, "soak") }); err != nil {
			return err
		}
	}
	return nil
}

func (o *person) halted(ctx context.Context) error {
	consumers, err := o.in.Consumers(ctx)
	if err != nil {
		return err
	}
	for _, c := range consumers {
		for _, part := range c.Partitions {
			if part.HaltedAt == nil {
				continue
			}
			if part.Code == inbox.CodeNewNumbering {
				if err := o.accept(ctx, part); err != nil {
					return err
				}
				continue
			}
			e := history.Entry{
				Verb: "resume", Detail: part.Code, Consumer: Consumer, Topic: part.Topic,
				Partition: part.Partition, Offset: part.From,
			}
			if err := o.do(e, func() error {
				return o.in.Resume(ctx, part.Topic, part.Partition,
					"soak")
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// NewNumbering returns the numbering that the error of a halt names.
func NewNumbering(part inboxoperator.PartitionState) string {
	return strings.TrimRight(part.Error[strings.LastIndexByte(part.Error, ' ')+1:], "`")
}

// accept accepts the numbering that the error of a halt names.
func (o *person) accept(ctx context.Context, part inboxoperator.PartitionState) error {
	epoch := NewNumbering(part)
	e := history.Entry{
		Verb: "accept", Detail: epoch, Consumer: Consumer, Topic: part.Topic, Partition: part.Partition,
		Offset: part.From,
	}
	return o.do(e, func() error {
		_, err := o.in.AcceptNumbering(ctx, epoch, "soak")
		return err
	})
}
