package cycle

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/tracing"
)

// startPublish begins the span "publish" of a claim: a trace of its own, with a link to each trace that its events were
// appended in. It lasts until every event is acked or given up, repetitions included. end takes the number of acked
// events. Without a provider it does nothing.
func (r *Cycle) startPublish(ctx context.Context, events []event.Event) (_ context.Context, end func(acked int)) {
	if r.Tracer == nil || len(events) == 0 {
		return ctx, func(int) {}
	}
	ctx, span := r.Tracer.Start(ctx, tracing.Span{
		Operation: "publish", Type: "send", Kind: trace.SpanKindClient, Root: true,
		Links: r.Tracer.Links(len(events), func(i int) map[string]string { return events[i].Headers },
			func(i int) string { return events[i].ID.String() }),
	}, len(events), func(i int) string { return events[i].Topic })
	return ctx, func(acked int) {
		// The other events are sent again, held or parked: the relay's metrics and its log tell which.
		span.SetAttributes(attribute.Int("effectonce.acked", acked))
		span.End()
	}
}
