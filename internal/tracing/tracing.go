// Package tracing makes the spans of the rooms: who starts one, and how the trace of an event gets from the transaction
// that appended it to the effect that it has.
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

// MaxLinks is how many traces a span links at most: what OpenTelemetry's own SDK keeps unless told otherwise.
const MaxLinks = 128

// The attributes of OpenTelemetry's conventions for messaging. Keys of events are personal data as often as not, and
// are never among them.
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

// Tracer starts spans. A nil one starts none.
type Tracer struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// New returns nil without a provider, so that tracing that nobody asked for costs a comparison. A nil propagator is W3C
// trace context.
func New(provider trace.TracerProvider, propagator propagation.TextMapPropagator) *Tracer {
	if provider == nil {
		return nil
	}
	if propagator == nil {
		propagator = propagation.TraceContext{}
	}
	return &Tracer{tracer: provider.Tracer(Scope), propagator: propagator}
}

// Span is what a room says of a span.
type Span struct {
	// Operation is the name of what is done; the span is named after it and the topic.
	Operation string
	// Type is the operation's type in the conventions: create, send or process.
	Type string
	Kind trace.SpanKind
	// Root begins a new trace whatever the context holds: what is ambient where a relay or a consumer runs caused
	// nothing of what the events are about.
	Root  bool
	Links []trace.Link
	Attrs []attribute.KeyValue
}

// Start begins a span about events of these topics; one topic of all is its destination. End it with [End].
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

// Links are the traces that some events were appended in, each once and in their order, up to [MaxLinks]. Events
// without a trace have none.
func (t *Tracer) Links(count int, headers func(i int) map[string]string, id func(i int) string) []trace.Link {
	var links []trace.Link
	seen := map[[24]byte]bool{}
	for i := 0; i < count && len(links) < MaxLinks; i++ {
		h := headers(i)
		if len(h) == 0 {
			continue
		}
		// Onto an empty context: what is ambient here is not the event's.
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

// End ends a span, as failed when err is not nil. The text of err becomes the span's, as it becomes the log's.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(ErrorType.String(errorType(err)))
	}
	span.End()
}

// errorType is the SQLSTATE where there is one, else the type of the error.
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
