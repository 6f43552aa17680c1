package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// emittedVersion is the encoding of emitted events that is known (queryEmitOne and queryEmitMany of package outbox).
const emittedVersion = 1

// text is what stands before the next zero, of the buffer that is read.
func (t *walText) text() []byte {
	end := bytes.IndexByte(t.b, 0)
	if end < 0 {
		t.broken, t.b = true, nil
		return nil
	}
	v := t.b[:end]
	t.b = t.b[end+1:]
	return v
}

// emitted takes an event that a producer has emitted. What a row could not be is refused, for it may have to become one: then nobody
// of ours has written it.
func (d *walDecoder) emitted(b []byte, to *walBatch) error {
	t := &walText{b: b}
	if version := t.u8(); version != emittedVersion {
		return fmt.Errorf("%w: an emitted event in encoding %d: only a later relay can read it", errWAL, version)
	}
	null, id, message, at := t.u8(), int64(t.u64()), t.take(16), t.take(8)
	e := event.Event{Source: d.text(t.text()), Tenant: d.text(t.text()), Topic: d.text(t.text()), Key: string(t.text()), Type: d.text(t.text()), ContentType: d.text(t.text())}
	headers := t.text()
	if t.broken || null > 1 || id <= 0 || !d.inside || null == 1 && len(t.b) > 0 {
		return fmt.Errorf("%w: an emitted event of %d bytes ends early, or is none", errWAL, len(b))
	}
	e.ID = uuid.UUID(message)
	var err error
	if e.Time, err = walTime(at); err == nil && len(headers) > 0 {
		err = json.Unmarshal(headers, &e.Headers)
	}
	if err == nil {
		err = unfit(&e)
	}
	if err != nil {
		return fmt.Errorf("%w: emitted event %s of transaction %d: %w", errWAL, e.ID, d.xid, err)
	}
	if null == 0 {
		e.Payload = d.payload(t.b)
	}
	it := walItem{id: id, commit: d.commit, xid: d.xid, nth: d.nth, lane: laneOf([]byte(e.Key), e.ID), emitted: true}
	d.nth++
	to.events, to.items, to.bytes = append(to.events, e), append(to.items, it), to.bytes+len(b)+eventOverhead
	return nil
}

// unfit says why an event cannot be a row: the rules of the table.
func unfit(e *event.Event) error {
	strange := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-'
	}
	switch year := e.Time.Year(); {
	case e.ID == uuid.Nil || e.ID == uuid.Max:
		return fmt.Errorf("message_id is %s", e.ID)
	case e.Topic == "" || len(e.Topic) > 249 || e.Topic == "." || e.Topic == ".." || strings.ContainsFunc(e.Topic, strange):
		return fmt.Errorf("its topic, of %d bytes, is no name that Kafka accepts", len(e.Topic))
	case e.Type == "" || len(e.Key) > 8192:
		return fmt.Errorf("its type has %d bytes and its key %d", len(e.Type), len(e.Key))
	case year < 1 || year > 9999:
		return fmt.Errorf("its time is in year %d", year)
	}
	for _, s := range []string{e.Source, e.Tenant, e.Key, e.Type, e.ContentType} {
		if !event.Storable(s) {
			return fmt.Errorf("a text of %d bytes is not valid UTF-8", len(s))
		}
	}
	for name, value := range e.Headers {
		if event.ReservedHeader(name) || !event.Storable(name) || !event.Storable(value) {
			return fmt.Errorf("a header with a name of %d bytes cannot be one", len(name))
		}
	}
	return nil
}
