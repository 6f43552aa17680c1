package tracing

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"
)

func TestNoProvider(t *testing.T) {
	t.Parallel()
	if New(nil, nil) != nil || New(nil, propagation.TraceContext{}) != nil {
		t.Error("a tracer without a provider")
	}
}

// TestLinks: what is no trace makes no link, and a trace that many events have makes one.
func TestLinks(t *testing.T) {
	t.Parallel()
	tracer := New(noop.NewTracerProvider(), nil)
	const one, two = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-00"
	headers := []map[string]string{
		nil,
		{"x": "y"},
		{"traceparent": "forged"},
		{"traceparent": "00-00000000000000000000000000000000-00f067aa0ba902b7-01"},
		{"traceparent": one, "tracestate": "vendor=1"},
		{"traceparent": two},
		{"traceparent": one},
	}
	links := tracer.Links(len(headers), func(i int) map[string]string { return headers[i] },
		func(i int) string { return fmt.Sprint(i) })
	if len(links) != 2 || links[0].SpanContext.SpanID().String() != "00f067aa0ba902b7" ||
		links[1].SpanContext.IsSampled() ||
		links[0].SpanContext.TraceState().Get("vendor") != "1" || links[0].Attributes[0].Value.AsString() != "4" {
		t.Errorf("links %+v", links)
	}
}

func TestErrorType(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("append: %w", &pgconn.PgError{Code: "23505"}), "23505"},
		{context.Canceled, "*errors.errorString"},
		{errors.Join(errors.New("a")), "*errors.joinError"},
	} {
		if got := errorType(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}
