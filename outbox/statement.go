package outbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Bounds of one statement. Drivers and server hold it in memory several times.
const (
	maxStatement       = 8 << 20 // bytes
	maxStatementEvents = 10000
)

// timeFormat is read the same under every DateStyle.
const timeFormat = "2006-01-02T15:04:05.999999Z07:00"

// statements writes the batch by one statement, or by several if it is too large for one.
func (b *batch) statements(exec func(query string, args []any, events int) error) error {
	return b.parts(func(from, to int) error {
		query, args := queryAppendOne, []any(nil)
		switch {
		case to-from == 1 && b.later:
			query, args = queryScheduleOne, append(b.one(from), due(&b.events[from]).Format(timeFormat))
		case to-from == 1:
			args = b.one(from)
		case b.later:
			query, args = queryScheduleMany, append(b.many(from, to), b.dues(from, to))
		default:
			query, args = queryAppendMany, b.many(from, to)
		}
		return exec(pgschema.Expand(query, b.prefix), args, to-from)
	})
}

// took fails unless the table has taken all rows: a trigger can swallow some, and their events would be lost silently.
func took(rows int64, of int) error {
	if rows != int64(of) {
		return fmt.Errorf("outbox: append %d events: the table took %d: roll back", of, rows)
	}
	return nil
}

// parts cuts the batch into statements.
func (b *batch) parts(do func(from, to int) error) error {
	for from := 0; from < len(b.events); {
		to, bytes := from, 0
		for to < len(b.events) && to-from < maxStatementEvents {
			bytes += len(b.events[to].Payload) + len(b.events[to].Key) + len(b.rows[to].headers)
			if bytes > maxStatement && to > from {
				break
			}
			to++
		}
		if err := do(from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (b *batch) one(i int) []any {
	e, r := &b.events[i], &b.rows[i]
	var headers, payload, at any
	if r.headers != "" {
		headers = r.headers
	}
	if e.Payload != nil {
		// Some drivers send a nil []byte as an empty value, but a tombstone must be null.
		payload = e.Payload
	}
	if !r.time.IsZero() {
		at = r.time.Format(timeFormat)
	}
	return []any{r.id.String(), r.source, e.Tenant, e.Topic, e.Key, e.Type, e.ContentType, headers, payload, at}
}

// many returns the arguments of queryAppendMany for events[from:to].
func (b *batch) many(from, to int) []any {
	events, rows := b.events[from:to], b.rows[from:to]
	payloads := make([]byte, 0, payloadSize(events))
	at, size := newArray(len(events)*8), newArray(len(events)*6)
	for i := range events {
		if events[i].Payload == nil {
			at.null()
			size.null()
			continue
		}
		at.raw(strconv.Itoa(len(payloads) + 1))
		size.raw(strconv.Itoa(len(events[i].Payload)))
		payloads = append(payloads, events[i].Payload...)
	}
	ids, headers, times := newArray(len(events)*37), newArray(len(events)*8), newArray(len(events)*8)
	for i := range rows {
		ids.raw(rows[i].id.String())
		if rows[i].headers == "" {
			headers.null()
		} else {
			headers.text(rows[i].headers)
		}
		if rows[i].time.IsZero() {
			times.null()
		} else {
			times.raw(`"` + rows[i].time.Format(timeFormat) + `"`)
		}
	}
	column := func(field func(i int) string) string {
		a := newArray(len(events) * 16)
		for i := range events {
			a.text(field(i))
		}
		return a.String()
	}
	return []any{
		ids.String(),
		column(func(i int) string { return rows[i].source }),
		column(func(i int) string { return events[i].Tenant }),
		column(func(i int) string { return events[i].Topic }),
		column(func(i int) string { return events[i].Key }),
		column(func(i int) string { return events[i].Type }),
		column(func(i int) string { return events[i].ContentType }),
		headers.String(), payloads, at.String(), size.String(), times.String(),
	}
}

// due returns an event's NotBefore in microseconds, rounded up: Postgres might round down.
func due(e *event.Event) time.Time {
	t := e.NotBefore.UTC()
	if whole := t.Truncate(time.Microsecond); whole.Before(t) {
		return whole.Add(time.Microsecond)
	}
	return t
}

// dues returns the last argument of queryScheduleMany.
func (b *batch) dues(from, to int) string {
	times := newArray((to - from) * 30)
	for i := from; i < to; i++ {
		times.raw(`"` + due(&b.events[i]).Format(timeFormat) + `"`)
	}
	return times.String()
}

func payloadSize(events []event.Event) int {
	n := 0
	for i := range events {
		n += len(events[i].Payload)
	}
	return n
}

// failed adds advice to the usual errors of a first installation.
func (b *batch) failed(err error) error {
	hint := ""
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		switch state.SQLState() {
		case "42P01": // undefined_table
			hint = " (run the outbox migrations, or set Appender.Schema to where they ran)"
		case "22P02": // invalid_text_representation: of "NULL", in an array
			hint = " (is array_nulls off in this session? set it to on, for the role and the database)"
		case "42P02": // undefined_parameter
			hint = " (this transaction rewrites queries and drops their arguments: hand over its *sql.Tx, which is " +
				"tx.Tx in bun)"
		case "42501": // insufficient_privilege
			hint = " (grant insert on the columns that package outbox lists, and on outbox_scheduled too for events " +
				"with NotBefore)"
		}
	}
	return fmt.Errorf("outbox: append %d events%s: %w", len(b.events), hint, err)
}

// array builds the text literal of a Postgres array.
type array struct{ b strings.Builder }

func newArray(size int) *array {
	a := new(array)
	a.b.Grow(size + 2)
	return a
}

func (a *array) String() string {
	if a.b.Len() == 0 {
		return "{}"
	}
	a.b.WriteByte('}')
	return a.b.String()
}

// raw adds an element that needs no quotes, or is quoted.
func (a *array) raw(s string) {
	if a.b.Len() == 0 {
		a.b.WriteByte('{')
	} else {
		a.b.WriteByte(',')
	}
	a.b.WriteString(s)
}

func (a *array) null() { a.raw("NULL") }

func (a *array) text(s string) {
	a.raw(`"`)
	for {
		i := strings.IndexAny(s, `"\`)
		if i < 0 {
			break
		}
		a.b.WriteString(s[:i])
		a.b.WriteByte('\\')
		a.b.WriteByte(s[i])
		s = s[i+1:]
	}
	a.b.WriteString(s)
	a.b.WriteByte('"')
}
