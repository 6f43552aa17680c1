package watermill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// event makes of a message what a consumer would make of its record: metadata are the headers. It keeps the record, so
// that a message that is parked comes back as it was.
func (i *Inbox) event(topic string, m *message.Message) (event.Event, error) {
	at, known := i.cfg.Origin(m)
	r := event.Record{
		Topic: topic, Partition: at.Partition, Offset: at.Offset, Time: at.Time, Key: at.Key,
		Value: m.Payload,
	}
	if !known && i.in.Dedup() != inbox.ByID {
		return event.Event{}, errors.New("InboxConfig.Origin does not tell its place in Kafka, and the inbox knows " +
			"messages by their numbers there: set it, or inbox.Config.Dedup to ByID")
	}
	if at.Time.IsZero() && known && i.in.Dedup() == inbox.ByOffset {
		return event.Event{}, errors.New("InboxConfig.Origin does not tell the time of its record, by which an inbox " +
			"that goes by offsets knows a topic that was made again: set it")
	}
	if !known {
		r = event.Record{Topic: topic, Partition: unknownPartition, Offset: i.arrival(), Value: m.Payload}
	}
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	if len(r.Key) == 0 {
		key, err := i.cfg.Key(topic, m)
		if err != nil {
			return event.Event{}, fmt.Errorf("its key: %w", err)
		}
		if key != "" {
			r.Key = []byte(key)
		}
	}
	for name, value := range m.Metadata {
		r.Headers = append(r.Headers, event.Header{Key: name, Value: []byte(value)})
	}
	slices.SortFunc(r.Headers, func(a, b event.Header) int { return strings.Compare(a.Key, b.Key) })
	if m.UUID != "" {
		r.Headers = append(r.Headers, event.Header{Key: MetadataUUID, Value: []byte(m.UUID)})
	}
	e := event.Decode(&r, i.cfg.ID)
	if e.ID == event.RecordID(topic, r.Partition, r.Offset, r.Time) { // it has none of its own
		switch {
		case m.UUID != "":
			e.ID = event.ForeignID(first(e.Source, topic), m.UUID)
		case !known:
			return event.Event{}, errors.New("it has no UUID, no metadata " + i.cfg.ID + " and no place in a log " +
				"that InboxConfig.Origin tells: nobody could know it again")
		}
	}
	if !known {
		// The relay's numbers count within a partition: without that they tell nothing.
		e.Position = event.Position{Lane: -1, Partition: unknownPartition, Offset: r.Offset}
	}
	e.Raw = r.Encode()
	return e, nil
}

// arrival numbers messages that have no offset: upwards, also from one process to the next.
func (i *Inbox) arrival() int64 {
	for {
		last := i.offset.Load()
		next := max(last+1, time.Now().UnixNano())
		if i.offset.CompareAndSwap(last, next) {
			return next
		}
	}
}

// released makes a message again of what was parked.
func released(e *event.Event) *message.Message {
	r := e.Record()
	return fromHeaders(r.Headers, e.ID.String(), r.Value)
}
