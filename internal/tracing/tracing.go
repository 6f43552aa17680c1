// Package tracing starts spans, and carries the trace of an event from the transaction that appended it to its effect.
//
// Spans on the two sides of the outbox are linked, not nested: an event may be published hours later, in one request
// with events of a thousand other traces, and again after that. docs/decisions/0012-what-is-observed.md has the
// reasons.
package tracing

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name of the instrumentation, in every span.
const Scope = "github.com/effectonce/effectonce"

// MaxLinks bounds the links of a span: the default of OpenTelemetry's SDK.
const MaxLinks = 128

// The attributes of OpenTelemetry's conventions for messaging. Keys of events are not among them: they are often
// personal data.
const (
	System        = attribute.Key("messaging.system")
	OperationName = attribute.Key("messaging.operation.name")
	OperationType = attribute.Key("messaging.operation.type")
	Destination   = attribute.Key("messaging.destination.name")
	Partition     = attribute.Key("messaging.destination.partition.id")
	MessageID     = attribute.Key("messaging.message.id")
	BatchCount    = attribute.Key("messaging.batch.message_count")
	ConsumerGroup = attribute.Key("messaging.consumer.group.name")
	Offset        = attribute.Key("messaging.kafka.offset")
	EventType     = attribute.Key("cloudevents.event_type")
	ErrorType     = attribute.Key("error.type")
)

// Tracer starts spans. A nil Tracer starts none.
type Tracer struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// New returns a Tracer; without a provider nil, so that disabled tracing costs a comparison. The default propagator is
// W3C trace context.
func New(provider trace.TracerProvider, propagator propagation.TextMapPropagator) *Tracer {
	if provider == nil {
		return nil
	}
	if propagator == nil {
		propagator = propagation.TraceContext{}
	}
	return &Tracer{tracer: provider.Tracer(Scope), propagator: propagator}
}

// Span describes a span.
type Span struct {
	// Operation is the first word of the span's name; the topic is the second.
	Operation string
	// Type is the operation's type in the conventions: create, send or process.
	Type string
	Kind trace.SpanKind
	// Root starts a new trace even if the context has one: the context in which a relay or a consumer runs did not
	// cause the events.
	Root  bool
	Links []trace.Link
	Attrs []attribute.KeyValue
}

// Start starts a span for events of these topics. If all have one topic, it is the destination. End it with [End].
func (t *Tracer) Start(ctx context.Context, s Span, count int, topic func(i int) string) (context.Context, trace.Span) {
	attrs := append(s.Attrs, System.String("kafka"), OperationName.String(s.Operation), OperationType.String(s.Type))
	name := s.Operation
	if one, ok := same(count, topic); ok {
		name += " " + one
		attrs = append(attrs, Destination.String(one))
	}
	if count != 1 {
		attrs = append(attrs, BatchCount.Int(count))
	}
	options := []trace.SpanStartOption{
		trace.WithSpanKind(s.Kind), trace.WithAttributes(attrs...),
		trace.WithLinks(s.Links...),
	}
	if s.Root {
		options = append(options, trace.WithNewRoot())
	}
	return t.tracer.Start(ctx, name, options...)
}

func same(count int, topic func(i int) string) (string, bool) {
	if count == 0 {
		return "", false
	}
	one := topic(0)
	for i := 1; i < count; i++ {
		if topic(i) != one {
			return "", false
		}
	}
	return one, true
}

// Links returns the traces in which events were appended, each once and in order, up to [MaxLinks].
func (t *Tracer) Links(count int, headers func(i int) map[string]string, id func(i int) string) []trace.Link {
	var links []trace.Link
	seen := map[[24]byte]bool{}
	for i := 0; i < count && len(links) < MaxLinks; i++ {
		h := headers(i)
		if len(h) == 0 {
			continue
		}
		// Onto an empty context: a trace in ctx is not the event's.
		sc := trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(h)))
		if !sc.IsValid() {
			continue
		}
		var key [24]byte
		trace, span := sc.TraceID(), sc.SpanID()
		copy(key[:], trace[:])
		copy(key[16:], span[:])
		if !seen[key] {
			seen[key] = true
			links = append(links, link(sc, id(i)))
		}
	}
	return links
}

func link(sc trace.SpanContext, id string) trace.Link {
	return trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{MessageID.String(id)}}
}

// End ends a span. With an error the span has failed, and has its text, as the log has.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(ErrorType.String(errorType(err)))
	}
	span.End()
}

// errorType returns the SQLSTATE of an error, or else its type.
func errorType(err error) string {
	for e := err; e != nil; {
		if state, ok := e.(interface{ SQLState() string }); ok {
			return state.SQLState()
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			break
		}
		e = u.Unwrap()
	}
	return fmt.Sprintf("%T", err)
}
