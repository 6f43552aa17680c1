package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// parkedOperator is an operator of parked events, of an outbox or of an inbox.
type parkedOperator interface {
	admin.ParkedOperator
	// list and event are Parked and ParkedEvent, for display. Without payload the event has neither payload nor
	// headers.
	list(ctx context.Context, f admin.ParkedFilter) ([]parkedEvent, error)
	event(ctx context.Context, id int64, payload bool) (parkedEvent, error)
	SkipHead(ctx context.Context, tenant, topic, key string, seen admin.Seen, keep bool, reason string) (
		admin.SkipResult, error)
}

// side is an outbox or an inbox: the flags that name it, and its differences.
type side interface {
	// act runs do with an operator in the name of a person, for timeout at most.
	act(ctx context.Context, p *program, timeout time.Duration, name string,
		do func(ctx context.Context, o parkedOperator) error) error
	// checkKeyFlags refuses flags that do not name the key's consumer.
	checkKeyFlags() error
	words() words
}

// onSide is embedded by the commands of both sides.
type onSide[S side] struct {
	Side S `embed:""`
}

func (o *onSide[S]) base() *database { return any(&o.Side).(interface{ base() *database }).base() }

// words are the differences in texts.
type words struct {
	side                   verbs.Side
	consumers              bool     // keys are those of consumers
	kinds                  []string // of parked events
	edited, released, gone string   // longer texts of --help
}

// column returns the text of a column that only lists of an inbox have.
func (w words) column(consumer string) string {
	if !w.consumers {
		return ""
	}
	return cmp.Or(consumer, "-") + "\t"
}

// outboxFlags name an outbox.
type outboxFlags struct{ database }

func (f outboxFlags) act(ctx context.Context, p *program, timeout time.Duration, name string,
	do func(ctx context.Context, o parkedOperator) error,
) error {
	return f.operate(ctx, p, timeout, name, func(ctx context.Context, o *operator.Operator) error {
		return do(ctx, outboxParked{o})
	})
}

// outboxParked is a parkedOperator of an outbox.
type outboxParked struct{ *operator.Operator }

func (o outboxParked) list(ctx context.Context, f admin.ParkedFilter) (list []parkedEvent, err error) {
	found, err := o.Parked(ctx, f)
	for _, e := range found {
		list = append(list, parkedEvent{Parked: e.Parked, json: e})
	}
	return list, err
}

func (o outboxParked) event(ctx context.Context, id int64, payload bool) (parkedEvent, error) {
	e, err := o.ParkedEvent(ctx, id)
	if !payload {
		e.Payload, e.Headers = nil, nil
	}
	details := [][2]string{
		{"lane", fmt.Sprint(e.Lane)},
		{"source", shown(e.Source)},
		{"content type", shown(e.ContentType)},
		{"may be in Kafka", yesNo(e.MaybePublished)},
		{"appended", e.CreatedAt.UTC().Format(time.RFC3339)},
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		details = append(details, [2]string{"header " + shown(name), shown(e.Headers[name])})
	}
	return parkedEvent{Parked: e.Parked, details: details, json: e}, err
}

func (outboxFlags) checkKeyFlags() error { return nil }

func (outboxFlags) words() words {
	return words{
		side:  verbs.Outbox,
		kinds: []string{"refused", "behind"},
		edited: `Its id, topic, key and type cannot be changed: consumers recognize a repeat by them. What an earlier attempt may have written keeps
its old content ("may be in Kafka" in show). The audit records that it was changed, but not the old content.`,
		released: `Names a key (--topic, --key, and --tenant if it has one), one event (--id), or --all. The relay that owns the lane publishes a key's list in
its order, under new numbers and the same ids; what was appended meanwhile comes after it. When Kafka refuses one of them again, the
key is parked again. Nothing happens while no relay runs.`,
		gone: `Names a key (--topic, --key, and --tenant if it has one) or one event (--id). It cannot be undone. An event that
may be in Kafka already may still appear once, late.`,
	}
}

// inboxFlags name an inbox, and a consumer of it.
type inboxFlags struct {
	database
	Consumer string `shown:"(any)" help:"Consumer name of the inbox. What is done by key or partition needs it."`
}

// operate runs do with an operator of the inbox in the name of a person, for timeout at most.
func (f inboxFlags) operate(ctx context.Context, p *program, timeout time.Duration, name string,
	do func(ctx context.Context, o *inboxoperator.Operator) error,
) error {
	reads := name == nobody
	name, err := operatorName(p, name)
	if err != nil {
		return err
	}
	return f.withPool(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		o, err := inboxoperator.New(pool, f.Schema, f.Consumer, name)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		if reads {
			if err := f.known(ctx, o); err != nil {
				return inboxError(err)
			}
		}
		return inboxError(do(ctx, o))
	})
}

// known fails if the consumer never started: that nothing is found would say that all is well with it.
func (f inboxFlags) known(ctx context.Context, o *inboxoperator.Operator) error {
	if f.Consumer == "" {
		return nil
	}
	known, err := o.Consumers(ctx)
	if err == nil && len(known) == 0 {
		err = fmt.Errorf("no consumer %s has ever started here: is its name right, and --database-url and --schema? "+
			"`relay inbox consumers` lists those that have", shown(f.Consumer))
	}
	return err
}

func (f inboxFlags) act(ctx context.Context, p *program, timeout time.Duration, name string,
	do func(ctx context.Context, o parkedOperator) error,
) error {
	return f.operate(ctx, p, timeout, name, func(ctx context.Context, o *inboxoperator.Operator) error {
		if err := f.known(ctx, o); err != nil {
			return err
		}
		return do(ctx, inboxParked{o})
	})
}

// inboxParked is a parkedOperator of an inbox.
type inboxParked struct{ *inboxoperator.Operator }

func (o inboxParked) list(ctx context.Context, f admin.ParkedFilter) (list []parkedEvent, err error) {
	found, err := o.Parked(ctx, f)
	for _, e := range found {
		list = append(list, parkedEvent{Parked: e.Parked, consumer: e.Consumer, json: e})
	}
	return list, err
}

func (o inboxParked) event(ctx context.Context, id int64, payload bool) (parkedEvent, error) {
	e, err := o.ParkedEvent(ctx, id)
	if !payload {
		e.Payload, e.Headers = nil, nil
	}
	details := [][2]string{
		{"consumer", e.Consumer},
		{"partition", fmt.Sprint(e.Partition)},
		{"offset", fmt.Sprint(e.Offset)},
		{"time", e.Time.UTC().Format(time.RFC3339)},
	}
	for _, h := range e.Headers {
		details = append(details, [2]string{"header " + shown(h.Key), shown(string(h.Value))})
	}
	return parkedEvent{Parked: e.Parked, consumer: e.Consumer, details: details, json: e}, err
}

func (f inboxFlags) checkKeyFlags() error {
	if f.Consumer == "" {
		return service.Usage("--consumer is missing: a key or partition is one of a consumer")
	}
	return nil
}

func (inboxFlags) words() words {
	return words{
		side:      verbs.Inbox,
		consumers: true,
		kinds:     []string{"failed", "behind", "quarantined"},
		edited: `Its id, topic, key and type stay: the payload of a structured CloudEvent is the whole CloudEvent, and an edit that makes another event
of it is refused. Headers that effectonce writes (ce_...) stay, too. The audit keeps the record as it was.`,
		released: `Names a key of --consumer (--topic, --key, and --tenant if it has one), one event (--id), or --all of --consumer. A worker runs a key's list in its order, one
transaction each; what comes meanwhile goes behind it. When one fails again, the key is parked again. Nothing happens while no
worker runs. Before you release a quarantined event, check its business row: the inbox cannot tell whether it was applied.`,
		gone: `Names a key of --consumer (--topic, --key, and --tenant if it has one) or one event (--id). The effect never runs. The audit keeps the
record, and its id stays in the inbox, so that a repeat is dropped.`,
	}
}
