package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/redact"
	"github.com/effectonce/effectonce/internal/tracing"
)

// errPanicked is the status of a span whose effect panicked. The panic itself is logged.
var errPanicked = errors.New("the effect panicked")

// traced runs an effect in a "process" span of its own trace. Each run has its own span, so an effect that runs again
// after a deadlock has two. The span ends before the COMMIT.
func (in *Inbox) traced(do Effect, root bool) Effect {
	if in.tracer == nil {
		return do
	}
	return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		return in.span(ctx, []event.Event{e}, root, func(ctx context.Context) error { return do(ctx, tx, e) })
	}
}

// tracedBatch is like traced for all new events of a batch: one span with a link for each trace.
func (in *Inbox) tracedBatch(do BatchEffect) BatchEffect {
	if in.tracer == nil {
		return do
	}
	return func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		return in.span(ctx, events, true, func(ctx context.Context) error { return do(ctx, tx, events) })
	}
}

func (in *Inbox) span(ctx context.Context, events []event.Event, root bool, do func(ctx context.Context) error) (
	err error,
) {
	s := tracing.Span{
		Operation: "process", Type: "process", Kind: trace.SpanKindConsumer, Root: root,
		Links: in.tracer.Links(len(events), func(i int) map[string]string { return events[i].Headers },
			func(i int) string { return events[i].ID.String() }),
		Attrs: []attribute.KeyValue{tracing.ConsumerGroup.String(in.consumer)},
	}
	if len(events) > 0 {
		s.Attrs = append(s.Attrs, tracing.Partition.String(strconv.Itoa(int(events[0].Position.Partition))))
	}
	if len(events) == 1 {
		s.Attrs = append(s.Attrs, tracing.MessageID.String(events[0].ID.String()),
			tracing.EventType.String(events[0].Type),
			tracing.Offset.Int64(events[0].Position.Offset))
	}
	ctx, span := in.tracer.Start(ctx, s, len(events), func(i int) string { return events[i].Topic })
	returned := false
	defer func() {
		switch {
		case !returned:
			err := fmt.Errorf("inbox: %w", errPanicked)
			tracing.End(span, err)
		case skips(err):
			tracing.End(span, nil) // an instruction, not a failure
		default:
			tracing.End(span, redact.Error(err))
		}
	}()
	err = do(ctx)
	returned = true
	return err
}
