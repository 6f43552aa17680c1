package outbox

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/tracing"
)

// startSpan begins the span "append" in the caller's trace. The events' headers name it, and the spans of relay and
// consumer link to it. It is called only with a provider.
func (a Appender) startSpan(ctx context.Context, events []event.Event) (context.Context, trace.Span) {
	s := tracing.Span{Operation: "append", Type: "create", Kind: trace.SpanKindProducer}
	if len(events) == 1 {
		s.Attrs = append(s.Attrs, tracing.EventType.String(events[0].Type))
		if id := events[0].ID; id != [16]byte{} {
			s.Attrs = append(s.Attrs, tracing.MessageID.String(id.String()))
		}
	}
	return tracing.New(a.TracerProvider, a.Propagator).Start(ctx, s, len(events),
		func(i int) string { return events[i].Topic })
}
