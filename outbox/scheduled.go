package outbox

import (
	"fmt"
	"time"

	"github.com/effectonce/effectonce/event"
)

// inboxWindow is the inbox's default window.
const inboxWindow = 14 * 24 * time.Hour

// split moves the scheduled events into another batch.
func (b *batch) split(now time.Time) []*batch {
	// Each gets all bytes: only their order of magnitude matters.
	soon := &batch{prefix: b.prefix, schema: b.schema, bytes: b.bytes}
	then := &batch{prefix: b.prefix, schema: b.schema, bytes: b.bytes, later: true}
	for i := range b.events {
		to := soon
		if b.events[i].NotBefore.After(now) {
			to = then
		}
		to.events, to.rows = append(to.events, b.events[i]), append(to.rows, b.rows[i])
	}
	if len(soon.events) == 0 {
		return []*batch{then}
	}
	return []*batch{soon, then}
}

// badDue says why an event cannot be scheduled; "": it can.
func (a Appender) badDue(e *event.Event) (field, reason string) {
	if e.NotBefore.IsZero() {
		return "", ""
	}
	if year := e.NotBefore.UTC().Year(); year < 1 || year > 9999 {
		return "NotBefore", fmt.Sprintf("is in year %d: want 1 to 9999", year)
	}
	window := a.InboxWindow
	if window == 0 {
		window = inboxWindow
	}
	made, ok := event.IDTime(e.ID)
	if window < 0 || !ok || e.NotBefore.Sub(made) <= window {
		return "", ""
	}
	return "ID", fmt.Sprintf("is a UUIDv7 of %s, and the event is due more than %v later, when inboxes no longer "+
		"tell whether they have applied it: "+
		"leave ID zero, use event.IDAt(NotBefore), or set Appender.InboxWindow", made.Format(time.DateOnly), window)
}
