package publisher

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// TestSlowClockMakesNoOldRecords: the publisher's clock is five days slow. With its time, retention might delete the
// records at once; they get the events' own time instead.
func TestSlowClockMakesNoOldRecords(t *testing.T) {
	t.Parallel()
	var first, last time.Time
	f := &fake{partitions: 1, produce: func(_ context.Context, r request) *produce.ResponsePartition {
		first, last = r.times()
		return &produce.ResponsePartition{}
	}}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f})
	days := 24 * time.Hour
	for name, c := range map[string]struct{ told, want time.Duration }{
		"a slow clock": {5 * days, 5 * days}, "a fast clock": {-5 * days, 0}, "no other clock": {},
	} {
		events := []event.Event{newEvent("t", "k", "0"), newEvent("t", "k", "1")}
		if c.told != 0 {
			events[1].Position.Timestamp = time.Now().Add(c.told)
		}
		allAcked(t, k.Publish(t.Context(), events))
		if d := time.Until(first) - c.want; first != last || d < -time.Hour || d > time.Hour {
			t.Errorf("%s: records of %v to %v, %v from this machine's time, want %v", name, first, last,
				time.Until(first), c.want)
		}
	}
}

// TestFastDatabaseClock: brokers refuse the events' own time as too far in the future. The records then get the
// publisher's time.
func TestFastDatabaseClock(t *testing.T) {
	t.Parallel()
	refused, refuseAll := 0, false
	f := &fake{partitions: 1, produce: func(_ context.Context, r request) *produce.ResponsePartition {
		if first, _ := r.times(); refuseAll || time.Until(first) > time.Hour {
			refused++
			return code(kafka.InvalidTimestamp)
		}
		return &produce.ResponsePartition{}
	}}
	k := newKafka(t, []string{"nowhere:1"}, Config{Transport: f})
	e := newEvent("t", "k", "0")
	e.Position.Timestamp = time.Now().Add(48 * time.Hour)
	allAcked(t, k.Publish(t.Context(), []event.Event{e}))
	if refused != 1 {
		t.Errorf("%d refused requests, want 1", refused)
	}
	refuseAll = true
	var r *outcome.Refusal
	if err := k.Publish(t.Context(), []event.Event{e})[0]; !errors.As(err, &r) || !r.Topic ||
		refused != 3 {
		t.Errorf("%v after %d refused requests, want the topic's refusal after 3", err, refused)
	}
}

// times returns the batch's first and last timestamp.
func (r request) times() (first, last time.Time) {
	raw := r.records.Reader.(*bytes.Reader)
	b := make([]byte, raw.Len())
	_, _ = raw.ReadAt(b, 0)
	at := func(i int) time.Time { return time.UnixMilli(int64(binary.BigEndian.Uint64(b[i:]))) }
	return at(sizePrefix + 27), at(sizePrefix + 35)
}
