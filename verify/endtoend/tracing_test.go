package endtoend

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/tracing"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/relay"
)

// traced is a database and the components that create spans.
type traced struct {
	*pgtest.DB
	spans    *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
	appender outbox.Appender
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	w := &traced{DB: pgtest.New(t, migrations.Outbox, migrations.Inbox), spans: tracetest.NewSpanRecorder()}
	w.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans))
	w.appender = outbox.Appender{TracerProvider: w.provider}
	return w
}

// append commits events in the trace of ctx.
func (w *traced) append(ctx context.Context, t *testing.T, events ...event.Event) {
	t.Helper()
	if err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		return w.appender.Append(ctx, tx, events...)
	}); err != nil {
		t.Fatal(err)
	}
}

// published runs the relay once, inside a span that must not become a parent.
func (w *traced) published(t *testing.T) []event.Event {
	t.Helper()
	var p outboxtest.MemoryPublisher
	r, err := relay.New(w.Pool, &p, relay.Config{TracerProvider: w.provider})
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := w.provider.Tracer("test").Start(t.Context(), "ambient")
	defer span.End()
	if _, err := r.Once(ctx); err != nil {
		t.Fatal(err)
	}
	return p.Events()
}

func (w *traced) inbox(t *testing.T) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(w.Pool, "test", inbox.Config{
		TracerProvider: w.provider, Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1, MaxAttempts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// named returns the ended spans of a name.
func (w *traced) named(name string) (list []sdktrace.ReadOnlySpan) {
	for _, s := range w.spans.Ended() {
		if s.Name() == name {
			list = append(list, s)
		}
	}
	return list
}

func (w *traced) one(t *testing.T, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	list := w.named(name)
	if len(list) != 1 {
		t.Fatalf("%d spans %q", len(list), name)
	}
	return list[0]
}

func linked(s sdktrace.ReadOnlySpan) (to []trace.SpanID) {
	for _, l := range s.Links() {
		to = append(to, l.SpanContext.SpanID())
	}
	return to
}

func has(t *testing.T, s sdktrace.ReadOnlySpan, want ...attribute.KeyValue) {
	t.Helper()
	for _, kv := range want {
		if !slices.Contains(s.Attributes(), kv) {
			t.Errorf("span %s has no %s=%s: %v", s.Name(), kv.Key, kv.Value.String(), s.Attributes())
		}
	}
}

// TestTraceFromAppendToEffect: the relay and the effect link to the request's trace, and events that the effect appends
// continue its span.
func TestTraceFromAppendToEffect(t *testing.T) {
	t.Parallel()
	w := newTraced(t)
	ctx, request := w.provider.Tracer("test").Start(t.Context(), "request")
	e := event.Event{ID: event.NewID(), Topic: "a", Key: "secret-key", Type: "T"}
	w.append(ctx, t, e)
	request.End()

	appended := w.one(t, "append a")
	if appended.Parent().SpanID() != request.SpanContext().SpanID() || appended.SpanKind() != trace.SpanKindProducer {
		t.Errorf("append: parent %v, kind %v", appended.Parent(), appended.SpanKind())
	}
	has(t, appended, tracing.System.String("kafka"), tracing.Destination.String("a"),
		tracing.MessageID.String(e.ID.String()),
		tracing.OperationType.String("create"), tracing.EventType.String("T"))

	events := w.published(t)
	sent := w.one(t, "publish a")
	if sent.Parent().IsValid() || !slices.Equal(linked(sent), []trace.SpanID{appended.SpanContext().SpanID()}) {
		t.Errorf("publish: parent %v, links %v", sent.Parent(), sent.Links())
	}
	has(t, sent, attribute.Int("effectonce.acked", 1), tracing.OperationType.String("send"))

	ambient, span := w.provider.Tracer("test").Start(t.Context(), "ambient")
	defer span.End()
	out, err := outboxtest.Deliver(ambient, t,
		w.inbox(t).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			return w.appender.Append(ctx, tx, event.Derive(e, "next", event.Event{Topic: "b", Type: "T"}))
		}), events...)
	if err != nil || out[0] != inbox.Applied {
		t.Fatal(out, err)
	}
	processed := w.one(t, "process a")
	if processed.Parent().IsValid() || !slices.Equal(linked(processed),
		[]trace.SpanID{appended.SpanContext().SpanID()}) {
		t.Errorf("process: parent %v, links %v", processed.Parent(), processed.Links())
	}
	if processed.Links()[0].SpanContext.TraceID() != request.SpanContext().TraceID() {
		t.Error("the effect's link is not to the request's trace")
	}
	has(t, processed, tracing.ConsumerGroup.String("test"), tracing.MessageID.String(e.ID.String()))
	next := w.one(t, "append b")
	if next.Parent().SpanID() != processed.SpanContext().SpanID() {
		t.Error("an event that the effect appends does not continue its span")
	}
	if parent := w.published(t)[0].Headers[event.HeaderTraceParent]; len(parent) != 55 ||
		parent[36:52] != next.SpanContext().SpanID().String() {
		t.Errorf("the next event says %q", parent)
	}
	for _, s := range w.spans.Ended() {
		for _, kv := range s.Attributes() {
			if kv.Value.String() == "secret-key" {
				t.Errorf("span %s shows a key", s.Name())
			}
		}
	}
}

// TestTraceOfBatch: a span has one link per trace, however many events a trace has, and at most 128.
func TestTraceOfBatch(t *testing.T) {
	t.Parallel()
	w := newTraced(t)
	const traces = tracing.MaxLinks + 10
	for i := range traces {
		topic := "a"
		if i == 0 {
			topic = "b"
		}
		w.append(t.Context(), t, event.Event{Topic: topic, Type: "T"}, event.Event{Topic: topic, Type: "T"})
	}
	events := w.published(t)
	if s := w.one(t, "publish"); len(s.Links()) != tracing.MaxLinks {
		t.Errorf("%d links", len(s.Links()))
	} else {
		has(t, s, tracing.BatchCount.Int(2*traces), attribute.Int("effectonce.acked", 2*traces))
	}
	few := events[:0]
	for _, e := range events {
		if e.Topic == "b" {
			few = append(few, e)
		}
	}
	calls := 0
	if _, err := outboxtest.Deliver(t.Context(), t,
		w.inbox(t).Batch(func(context.Context, pgx.Tx, []event.Event) error {
			calls++
			return nil
		}), few...); err != nil {
		t.Fatal(err)
	}
	s := w.one(t, "process b")
	if len(s.Links()) != 1 || calls != 1 {
		t.Errorf("%d links for two events of one trace, %d calls", len(s.Links()), calls)
	}
	has(t, s, tracing.BatchCount.Int(2))
}

// TestTraceOfFailures: the span of a failed effect has an error status; Skip is not a failure.
func TestTraceOfFailures(t *testing.T) {
	t.Parallel()
	w := newTraced(t)
	err := pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) error {
		return w.appender.Append(t.Context(), tx, event.Event{Topic: "not a topic", Type: "T"})
	})
	if s := w.one(t, "append not a topic"); err == nil || s.Status().Code != codes.Error {
		t.Errorf("%v, status %v", err, s.Status())
	} else {
		has(t, s, tracing.ErrorType.String("*outbox.EventError"))
	}
	do := map[string]func(tx pgx.Tx) error{
		"fails":  func(pgx.Tx) error { return errors.New("as the test wants it") },
		"panics": func(pgx.Tx) error { panic("as the test wants it") },
		"sql":    func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), "select 1/0"); return err },
		"skips":  func(pgx.Tx) error { return inbox.Skip },
	}
	h := w.inbox(t).Each(func(_ context.Context, tx pgx.Tx, e event.Event) error { return do[e.Topic](tx) })
	for topic := range do {
		_, _ = outboxtest.Deliver(t.Context(), t, h, event.Event{Topic: topic, Type: "T"})
		s := w.named("process " + topic)[0]
		if failed := s.Status().Code == codes.Error; failed != (topic != "skips") {
			t.Errorf("%s: status %v", topic, s.Status())
		}
		if topic == "sql" {
			has(t, s, tracing.ErrorType.String("22012"))
		}
	}
}

// TestTraceOfProcessTx: the span is a child of the caller's span, and has a link to the event's trace.
func TestTraceOfProcessTx(t *testing.T) {
	t.Parallel()
	w := newTraced(t)
	w.append(t.Context(), t, event.Event{Topic: "a", Type: "T"})
	e := w.published(t)[0]
	ctx, mine := w.provider.Tracer("test").Start(t.Context(), "mine")
	defer mine.End()
	in := w.inbox(t)
	if err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		_, err := in.ProcessTx(ctx, tx, e, func(context.Context, pgx.Tx, event.Event) error { return nil })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if s := w.one(t, "process a"); s.Parent().SpanID() != mine.SpanContext().SpanID() || len(s.Links()) != 1 {
		t.Errorf("parent %v, links %v", s.Parent(), s.Links())
	}
}
