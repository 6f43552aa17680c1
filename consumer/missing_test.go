package consumer

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// A topic that is missing is not consumed, and nothing else says so: the line comes again, and the state has it.
func TestMissingTopicIsSaidAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Consumer{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		c.outage = &outage{log: c.cfg.Logger, observer: &c.cfg.Observer}
		missing := map[string]error{"oders": kafka.UnknownTopicOrPartition}
		for range 60 { // an hour
			for range 12 {
				c.logMissing(missing)
				passes(5 * time.Second)
			}
		}
		if n := bytes.Count(log.Bytes(), []byte("topics are missing")); n < 10 || n > 13 {
			t.Errorf("%d lines in an hour", n)
		}
		if got := c.Status().Missing; !slices.Equal(got, []string{"oders"}) {
			t.Errorf("the state has %q", got)
		}
		c.logMissing(nil)
		c.logMissing(nil)
		if got := c.Status().Missing; len(got) > 0 || bytes.Count(log.Bytes(), []byte("no topic is missing")) != 1 {
			t.Errorf("once it is there: the state has %q, the log\n%s", got, log.Bytes())
		}
	})
}

// StartLatest is about what was there before. A topic that the consumer has waited for is new, all of it.
func TestStartLatestOfATopicThatIsMadeLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    facts
		want int64
	}{
		"made later":                {facts{end: 5, absent: true}, 0},
		"there before":              {facts{end: 5}, 5},
		"one false answer about it": {facts{first: 3, end: 5, absent: true}, 5},
	} {
		c.f.start, c.f.group, c.f.db, c.f.diverged = StartLatest, nothingKnown, inbox.Progress{Next: -1, Kept: true}, -1
		if b := c.f.begin(); b.at != c.want {
			t.Fatalf("%s: begins at %d (%s), want %d", name, b.at, b.why, c.want)
		}
	}

	kafkatest.RequireReal(t)
	topic, brokers := "made-later-"+uuid.NewString(), kafkatest.Brokers(t)
	offsets := make(chan int64, 5)
	h := inbox.HandlerFunc(func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		out := make([]inbox.Outcome, len(events))
		for i, e := range events {
			offsets <- e.Position.Offset
			out[i] = inbox.Applied
		}
		return out, nil
	})
	c, err := New(h, brokers, []string{topic}, Config{
		Group: topic, Start: StartLatest, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	for !c.wasAbsent(topic) && ctx.Err() == nil {
		passes(5 * time.Millisecond)
	}
	kafkatest.CreateTopic(t, brokers, topic, 1)
	r := kafkatest.Record{Key: []byte("k")}
	kafkatest.Produce(t, topic, r, r, r, r, r)
	for want := range int64(5) {
		select {
		case got := <-offsets:
			if got != want {
				t.Errorf("offset %d, want %d", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("waited in vain for offset %d", want)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
