package watermill

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// decode makes the event that a consumer would make of a record with the message's metadata as headers. Raw keeps the
// record, so that a parked message is released unchanged.
func (i *Inbox) decode(topic string, m *message.Message) (event.Event, error) {
	at, known := i.cfg.Origin(m)
	r := event.Record{
		Topic: topic, Partition: at.Partition, Offset: at.Offset, Time: at.Time, Key: at.Key,
		Value: m.Payload,
	}
	if !known && i.in.Dedup() != inbox.ByID {
		return event.Event{}, errors.New("InboxConfig.Origin does not return its place in Kafka, by which the inbox " +
			"identifies messages: set it, or set inbox.Config.Dedup to ByID")
	}
	if at.Time.IsZero() && known && i.in.Dedup() == inbox.ByOffset {
		return event.Event{}, errors.New("InboxConfig.Origin does not return the time of its record, by which an " +
			"inbox with Dedup ByOffset notices that a topic was recreated: set it")
	}
	if !known {
		r = event.Record{Topic: topic, Partition: unknownPartition, Offset: i.newLocalOffset(), Value: m.Payload}
	}
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	if len(r.Key) == 0 {
		key, err := i.cfg.Key(topic, m)
		if err != nil {
			return event.Event{}, fmt.Errorf("key: %w", err)
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
	if e.ID == event.RecordID(topic, r.Partition, r.Offset, r.Time) { // the message has no id in its metadata
		switch {
		case m.UUID != "":
			e.ID = event.ForeignID(cmp.Or(e.Source, topic), m.UUID)
		case !known:
			return event.Event{}, errors.New("it has no UUID, no metadata " + i.cfg.ID + " and no place in a log " +
				"from InboxConfig.Origin, so a duplicate of it could not be recognized")
		}
	}
	if !known {
		// The relay's numbers rise only within a partition.
		e.Position = event.Position{Lane: -1, Partition: unknownPartition, Offset: r.Offset}
	}
	e.Raw = r.Encode()
	return e, nil
}

// newLocalOffset stands for the offset of a message whose place is unknown. It rises, from process to process too.
func (i *Inbox) newLocalOffset() int64 {
	for {
		last := i.lastLocalOffset.Load()
		next := max(last+1, time.Now().UnixNano())
		if i.lastLocalOffset.CompareAndSwap(last, next) {
			return next
		}
	}
}

// releasedMessage makes the message of a released event.
func releasedMessage(e *event.Event) *message.Message {
	r := e.Record()
	return fromHeaders(r.Headers, e.ID.String(), r.Value)
}
