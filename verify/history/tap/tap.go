// Package tap writes the histories of relays and workers. It wraps their publisher, handler and effect without changing
// their behaviour, and provides their Observers.
package tap

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
)

// Publisher records the events that a relay publishes, and the verdicts. The result is a relay.Router if to is one.
func Publisher(w *history.Writer, to relay.Publisher) relay.Publisher {
	p := publisher{w, to}
	if r, ok := to.(relay.Router); ok {
		return routing{p, r}
	}
	return p
}

type publisher struct {
	w  *history.Writer
	to relay.Publisher
}

type routing struct {
	publisher
	relay.Router
}

func (p publisher) Publish(ctx context.Context, events []event.Event) []error {
	sent := make([]history.Sent, len(events))
	epoch := ""
	for i := range events {
		at := &events[i].Position
		sent[i] = history.Sent{ID: events[i].ID, Lane: at.Lane, Seq: at.Seq}
		if at.Epoch != epoch {
			epoch, sent[i].Epoch = at.Epoch, at.Epoch
		}
	}
	op, err := p.w.Write(history.Entry{Kind: history.KindPublish, Sent: sent})
	if err != nil {
		// Do not send an event that is not recorded: the checker would take it for a phantom.
		return all(len(events), err)
	}
	verdicts := p.to.Publish(ctx, events)
	e := history.Entry{Kind: history.KindPublished, Op: op, Outcome: history.OK}
	for i, err := range verdicts {
		if err == nil {
			continue
		}
		_, certain := errors.AsType[*outcome.Refusal](err)
		e.Outcome = history.Unknown
		e.Refused = append(e.Refused, history.Refused{ID: events[i].ID, Err: err.Error(), Certain: certain})
	}
	_, _ = p.w.Write(e)
	return verdicts
}

func all(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Relay returns an Observer that records a relay's callbacks. It records an outage once.
func Relay(w *history.Writer) relay.Observer {
	write := func(e history.Entry) { _, _ = w.Write(e) } // w keeps the first error for the caller
	return relay.Observer{
		LaneTaken: func(lane int16, fence int64) {
			write(history.Entry{Kind: history.KindLaneTaken, Lane: lane, Fence: fence})
		},
		LaneLeft: func(lane int16, lost bool) {
			write(history.Entry{Kind: history.KindLaneLeft, Lane: lane, Lost: lost})
		},
		Claimed: func(n, discarded int, _ time.Duration) {
			write(history.Entry{Kind: history.KindClaimed, Count: n + discarded})
		},
		Settled: func(n, _ int, _ time.Duration) { write(history.Entry{Kind: history.KindSettled, Count: n}) },
		Held: func(topic string, partition int32, n int) {
			write(history.Entry{Kind: history.KindHeld, Topic: topic, Partition: partition, Count: n})
		},
		Drained:  func(n int) { write(history.Entry{Kind: history.KindDrained, Count: n}) },
		Parked:   func(n int) { write(history.Entry{Kind: history.KindParked, Count: n}) },
		Released: func(n int) { write(history.Entry{Kind: history.KindReleased, Count: n}) },
		BelowFloor: func(lane int16) {
			write(history.Entry{Kind: history.KindNote, Verb: history.VerbBelowFloor, Lane: lane})
		},
		Outage: func(what string, err error) {
			write(history.Entry{Kind: history.KindOutage, Detail: what, Err: text(err)})
		},
	}
}

// Handler records the events that a worker passes to the handler of a consumer, and their outcomes.
func Handler(w *history.Writer, consumer string, to inbox.Handler) inbox.Handler {
	return handler{to, w, consumer}
}

type handler struct {
	inbox.Handler
	w        *history.Writer
	consumer string
}

func (h handler) Handle(ctx context.Context, events []event.Event) ([]inbox.Outcome, error) {
	begin := history.Entry{Kind: history.KindHandle, Consumer: h.consumer, Count: len(events)}
	if len(events) > 0 {
		at := events[0].Position
		begin.Topic, begin.Partition, begin.Offset, begin.IDs = events[0].Topic, at.Partition, at.Offset,
			tables.IDs(events)
	}
	op, err := h.w.Write(begin)
	if err != nil {
		return make([]inbox.Outcome, len(events)), err
	}
	outcomes, err := h.Handler.Handle(ctx, events)
	end := history.Entry{Kind: history.KindHandled, Op: op, Outcome: history.OK, Err: text(err)}
	if err != nil {
		end.Outcome = history.Unknown
	}
	for _, o := range outcomes {
		end.Outcomes = append(end.Outcomes, o.String())
	}
	_, _ = h.w.Write(end)
	return outcomes, err
}

// Effect returns an effect that records each run, and applies the events by tables.Apply.
func Effect(w *history.Writer, consumer string) inbox.BatchEffect {
	return func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		if err := Ran(w, consumer, events); err != nil {
			return err
		}
		return tables.Apply(ctx, tx, consumer, events...)
	}
}

// Ran records a run of an effect, for effects other than Effect.
func Ran(w *history.Writer, consumer string, events []event.Event) error {
	_, err := w.Write(history.Entry{Kind: history.KindEffect, Consumer: consumer, IDs: tables.IDs(events)})
	return err
}

// Inbox returns an Observer that records an inbox's callbacks.
func Inbox(w *history.Writer, consumer string) inbox.Observer {
	write := func(e history.Entry) { e.Consumer = consumer; _, _ = w.Write(e) }
	return inbox.Observer{
		Parked: func(i inbox.ParkedInfo) {
			write(history.Entry{
				Kind: history.KindParked, IDs: []uuid.UUID{i.Event.ID}, Count: i.Attempts,
				Detail: i.Code, Err: text(i.Err),
			})
		},
		Released: func(i inbox.ReleasedInfo) {
			write(history.Entry{
				Kind: history.KindReleased, IDs: []uuid.UUID{i.Event.ID},
				Outcomes: []string{i.Outcome.String()}, Err: text(i.Err),
			})
		},
		Retried: func(i inbox.RetriedInfo) {
			write(history.Entry{
				Kind: history.KindNote, Verb: history.VerbRetried, Topic: i.Topic,
				Partition: i.Partition, Count: i.Attempt, Detail: i.Reason, Err: text(i.Err),
			})
		},
		Halted: func(h *inbox.HaltError) {
			at := h.Event.Position
			write(history.Entry{
				Kind: history.KindHalted, Topic: h.Event.Topic, Partition: at.Partition,
				Offset: at.Offset, IDs: []uuid.UUID{h.Event.ID}, Err: h.Error(),
			})
		},
		Maintained: func(i inbox.MaintainedInfo) {
			for _, d := range i.Dropped {
				write(history.Entry{Kind: history.KindNote, Verb: history.VerbDropped, Detail: d})
			}
		},
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
