package outbox_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func traced(t *testing.T) context.Context {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	member, err := baggage.NewMember("user", "7")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{
			0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47,
			0x36,
		},
		SpanID: trace.SpanID{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}, TraceFlags: trace.FlagsSampled,
		TraceState: state,
	}))
	return baggage.ContextWithBaggage(ctx, bag)
}

// rude writes what no header may be.
type rude struct{ propagation.TraceContext }

func (rude) Inject(_ context.Context, carrier propagation.TextMapCarrier) {
	carrier.Set("ce_id", "forged")
	carrier.Set("bad", "\x00")
	carrier.Set("long", strings.Repeat("x", 1<<20))
	carrier.Set("good", "g")
}

func TestTrace(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	own := map[string]string{"traceparent": "own", "x": "y"}
	w3c := map[string]string{"traceparent": parent, "tracestate": "vendor=1"}
	with := func(more ...map[string]string) map[string]string {
		m := map[string]string{}
		for _, from := range append([]map[string]string{w3c}, more...) {
			maps.Copy(m, from)
		}
		return m
	}
	both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	for name, c := range map[string]struct {
		ctx        context.Context
		propagator propagation.TextMapPropagator
		plain, own map[string]string // what becomes of an event without and with its own headers
	}{
		"no span": {t.Context(), nil, nil, own},
		"default": {traced(t), nil, w3c, with(own)},
		"baggage": {
			traced(t), both, with(map[string]string{"baggage": "user=7"}),
			with(map[string]string{"baggage": "user=7"}, own),
		},
		"off": {traced(t), propagation.NewCompositeTextMapPropagator(), nil, own},
		"misbehaved": {
			traced(t),
			rude{},
			map[string]string{"good": "g"},
			map[string]string{"good": "g", "traceparent": "own", "x": "y"},
		},
	} {
		for _, n := range []int{2, outbox.CopyFrom} {
			events := make([]event.Event, n)
			for i := range events {
				events[i] = event.Event{Topic: "t", Type: "T"}
				if i == 1 {
					events[i].Headers = own
				}
			}
			inTx(t, db.Pool, func(tx pgx.Tx) error {
				return outbox.Appender{Propagator: c.propagator}.Append(c.ctx, tx, events...)
			})
			got := stored(t, db)
			if !maps.Equal(got[0].Headers, c.plain) || !maps.Equal(got[1].Headers, c.own) {
				t.Errorf("%s, %d events: headers %q and %q, want %q and %q", name, n, got[0].Headers, got[1].Headers,
					c.plain, c.own)
			}
			db.Exec(t, "delete from outbox_event where $1", true)
		}
	}
	if len(own) != 2 {
		t.Error("the caller's headers were changed")
	}
}
