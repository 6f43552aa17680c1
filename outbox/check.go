package outbox

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// The bounds of an event. The table also checks topic, key, texts and reserved headers, for producers in plain SQL.
const (
	maxRecord      = 1 << 20 // bytes; a broker's default is 1,048,588 for a batch of one
	maxTopic       = 249     // Kafka's own: a topic is a directory name with "-partition" appended
	maxKey         = 8192    // bytes
	maxText        = 2048    // bytes of type, source, tenant, content type
	maxHeaders     = 100
	maxHeaderName  = 255  // bytes
	maxHeaderValue = 8192 // bytes

	// recordOverhead is the size of a record without key, payload and texts: batch and record framing (under 100
	// bytes), and names, lengths and fixed values of the codec's headers (under 300).
	recordOverhead = 512
	headerOverhead = 8 // two lengths, each a varint
)

// EventError refuses an event before anything was sent: the transaction is as if Append had not been called.
type EventError struct {
	// Index is the event's place in the call's events, from 0.
	Index int
	// Field is the name of the wrong field of event.Event.
	Field string
	// Reason says what is wrong and what is allowed. It contains no payload, key or header value.
	Reason string
}

// Error names event and field.
func (e *EventError) Error() string {
	return fmt.Sprintf("outbox: event %d: %s %s", e.Index, e.Field, e.Reason)
}

// check returns the approximate size of the event's record, with the headers of the trace.
func (a Appender) check(i int, e *event.Event, trace map[string]string) (int, error) {
	refuse := func(field, format string, args ...any) (int, error) {
		return 0, &EventError{Index: i, Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if e.ID == uuid.Max {
		return refuse("ID", "is the max UUID: leave it zero, or use event.NewID")
	}
	if e.Raw != nil {
		return refuse("Raw", "is set: the event was consumed, and consumers would take another one of its id for a "+
			"repeat; give the new event an id of event.Derive, or none, and set Raw to nil")
	}
	if !validTopic(e.Topic) {
		return refuse("Topic", "%.64q is no name that Kafka accepts: want 1 to %d of a-z, A-Z, 0-9, '.', '_' and "+
			"'-', but not \".\" or \"..\"", e.Topic, maxTopic)
	}
	if e.Type == "" {
		return refuse("Type", "is empty: name the kind of fact, such as \"PaymentCreated\"")
	}
	if len(e.Key) > maxKey {
		return refuse("Key", "has %d bytes: at most %d are allowed", len(e.Key), maxKey)
	}
	if !event.Storable(e.Key) {
		return refuse("Key", "is not valid UTF-8 without U+0000: encode binary keys, in hex for example")
	}
	size := recordOverhead + len(e.Key) + len(a.Source)
	for _, f := range [...]struct{ name, value string }{
		{"Type", e.Type}, {"Source", e.Source}, {"Tenant", e.Tenant}, {"ContentType", e.ContentType},
	} {
		if reason := badText(f.value); reason != "" {
			return refuse(f.name, "%s", reason)
		}
		size += len(f.value)
	}
	if reason := badHeaders(e.Headers); reason != "" {
		return refuse("Headers", "%s", reason)
	}
	size += headersSize(e.Headers) + headersSize(trace)
	// ce_time is RFC 3339, which has fewer years than Postgres.
	if year := e.Time.UTC().Year(); year < 1 || year > 9999 {
		return refuse("Time", "is in year %d: want 1 to 9999", year)
	}
	if field, reason := a.badDue(e); reason != "" {
		return refuse(field, "%s", reason)
	}
	if limit := a.limit(size); limit >= 0 && len(e.Payload) > limit {
		return refuse("Payload", "has %d bytes: at most %d are allowed, see Appender.MaxPayload", len(e.Payload), limit)
	}
	return size + len(e.Payload), nil
}

// limit returns the largest payload if the rest of the record has size bytes; negative: no limit.
func (a Appender) limit(size int) int {
	if a.MaxPayload != 0 {
		return max(a.MaxPayload, -1)
	}
	// Never negative: the longest headers and texts fit.
	return maxRecord - size
}

// checkTwice refuses an id that an earlier event has: every consumer would drop one of the two as a duplicate.
func checkTwice(seen map[uuid.UUID]int, i int, id uuid.UUID) error {
	if id == uuid.Nil {
		return nil
	}
	if first, ok := seen[id]; ok {
		return &EventError{Index: i, Field: "ID", Reason: fmt.Sprintf("is also the id of event %d", first)}
	}
	seen[id] = i
	return nil
}

// given holds the ids that were appended in a transaction. It is stored with the connection, and holds the transaction,
// so that no later transaction has its address.
type given struct {
	tx  pgx.Tx
	ids map[uuid.UUID]bool
}

const givenKey = "effectonce: appended ids"

// give records the events' ids. It refuses an id that an earlier call has appended in tx, as from event.Derive with one
// name in a loop.
func give(tx pgx.Tx, events []event.Event) error {
	if !slices.ContainsFunc(events, func(e event.Event) bool { return e.ID != uuid.Nil }) {
		return nil
	}
	conn := tx.Conn()
	if conn == nil { // a test's fake transaction
		return nil
	}
	data := conn.PgConn().CustomData()
	g, _ := data[givenKey].(*given)
	if g == nil || g.tx != tx {
		g = &given{tx, map[uuid.UUID]bool{}}
		data[givenKey] = g
	}
	for i := range events {
		if g.ids[events[i].ID] {
			return &EventError{Index: i, Field: "ID", Reason: "was appended in this transaction before: consumers " +
				"would take one of the two for a repeat; event.Derive needs another name for each event of one cause"}
		}
	}
	for i := range events {
		if id := events[i].ID; id != uuid.Nil {
			g.ids[id] = true
		}
	}
	return nil
}

// validTopic is Kafka's rule, which the table also checks.
func validTopic(topic string) bool {
	if topic == "" || len(topic) > maxTopic || topic == "." || topic == ".." {
		return false
	}
	for i := range len(topic) {
		switch c := topic[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// badText says why s cannot be a text column or a header; "": it can.
func badText(s string) string {
	switch {
	case len(s) > maxText:
		return fmt.Sprintf("has %d bytes: at most %d are allowed", len(s), maxText)
	case !event.Storable(s):
		return "is not valid UTF-8 without U+0000"
	}
	return ""
}

func badHeaders(headers map[string]string) string {
	if len(headers) > maxHeaders {
		return fmt.Sprintf("are %d: at most %d are allowed", len(headers), maxHeaders)
	}
	for name, value := range headers {
		if reason := badHeader(name, value); reason != "" {
			return fmt.Sprintf("%.64q: %s", name, reason)
		}
	}
	return ""
}

func badHeader(name, value string) string {
	switch {
	case name == "" || len(name) > maxHeaderName:
		return fmt.Sprintf("the name has %d bytes: want 1 to %d", len(name), maxHeaderName)
	case event.ReservedHeader(name):
		return "the name is reserved: names beginning with ce_, and content-type, are made of the event's fields"
	case len(value) > maxHeaderValue:
		return fmt.Sprintf("the value has %d bytes: at most %d are allowed", len(value), maxHeaderValue)
	case !event.Storable(name) || !event.Storable(value):
		return "name and value must be valid UTF-8 without U+0000"
	}
	return ""
}

func headersSize(headers map[string]string) int {
	size := 0
	for name, value := range headers {
		size += len(name) + len(value) + headerOverhead
	}
	return size
}
