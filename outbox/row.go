package outbox

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"

	"github.com/effectonce/effectonce/event"
)

// row has the values of an event's row that are not fields of the event.
type row struct {
	id      uuid.UUID
	source  string
	headers string    // a JSON object; empty: null
	time    time.Time // in UTC; zero: null
}

func (a Appender) row(e *event.Event, t traceHeaders, now time.Time) row {
	r := row{id: e.ID, source: e.Source, headers: t.json}
	switch {
	case r.id != uuid.Nil:
	case e.NotBefore.After(now):
		r.id = event.IDAt(e.NotBefore)
	default:
		r.id = event.NewID()
	}
	if r.source == "" {
		r.source = a.Source
	}
	if len(e.Headers) > 0 {
		r.headers = encode(e.Headers, t.headers)
	}
	if !e.Time.IsZero() {
		// Postgres rounds, and rounding may leave year 9999.
		r.time = e.Time.UTC().Truncate(time.Microsecond)
	}
	return r
}

// traceHeaders are the headers with the context's trace. Empty without a span.
type traceHeaders struct {
	headers map[string]string
	json    string // headers, encoded: most events have no others
}

func (a Appender) trace(ctx context.Context) traceHeaders {
	var p propagation.TextMapPropagator = propagation.TraceContext{}
	if a.Propagator != nil {
		p = a.Propagator
	}
	carrier := propagation.MapCarrier{}
	p.Inject(ctx, carrier)
	// Tracing must not fail a business transaction: headers that cannot be stored are left out.
	maps.DeleteFunc(carrier, func(name, value string) bool { return badHeader(name, value) != "" })
	if len(carrier) == 0 {
		return traceHeaders{}
	}
	return traceHeaders{headers: carrier, json: encode(carrier, nil)}
}

// encode returns headers as a JSON object, with those of more whose names are not among them.
func encode(headers, more map[string]string) string {
	b := make([]byte, 0, 2+headersSize(headers)+headersSize(more))
	b = append(b, '{')
	for name, value := range headers {
		b = appendMember(b, name, value)
	}
	for name, value := range more {
		if _, own := headers[name]; !own {
			b = appendMember(b, name, value)
		}
	}
	return string(append(b, '}'))
}

func appendMember(b []byte, name, value string) []byte {
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = appendJSON(b, name)
	b = append(b, ':')
	return appendJSON(b, value)
}

func appendJSON(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string never fails
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
