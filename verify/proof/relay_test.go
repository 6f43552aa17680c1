package proof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/verify/roles"
)

// One partition does not answer for silentFor in every silentEvery.
const (
	silentEvery = 2 * time.Second
	silentFor   = 600 * time.Millisecond
	silentOne   = 1 // the partition's number
)

func runRelay(ctx context.Context, s *stage) error {
	box, err := relay.Open(s.db, "")
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(s.brokers, publisher.Config{Pin: box.Pin, Timeout: 2 * time.Second, Dial: s.dial})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	events, archive := 100, 2
	if os.Getenv(envUnusual) != "" {
		events, archive = relay.Lanes, 0 // one or two events per lane; most lanes have more
	}
	var to relay.Publisher = &unreliable{Kafka: kafka, began: time.Now(), refuses: os.Getenv(envUnusual) != ""}
	if os.Getenv(envCalm) != "" {
		to = kafka
	}
	feed := relay.FeedTable
	if os.Getenv(envFeed) == fromWAL {
		feed = relay.FeedWAL
	}
	r, err := relay.New(s.db, to, relay.Config{
		Feed: feed, WALHeartbeat: time.Second, Lease: time.Second, ClaimEvents: events,
		ProbeAwake: 20 * time.Millisecond, ProbeIdle: 100 * time.Millisecond, HoldAfter: 100 * time.Millisecond,
		FloorEvery: 50 * time.Millisecond, RescanEvery: 500 * time.Millisecond, ArchiveDays: archive,
		Check:  roles.Identify(box),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Observer: relay.Observer{BelowFloor: func(lane int16) {
			fmt.Fprintln(os.Stderr, "a row below the floor of lane", lane)
			os.Exit(3)
		}},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// unreliable is Kafka with a partition that is silent at times, or a topic that is refused.
type unreliable struct {
	*publisher.Kafka
	began   time.Time
	refuses bool
}

// errRefused is a broker's refusal of all events of a topic.
var errRefused = &outcome.Refusal{Topic: true, Err: errors.New("nothing may be written to this topic")}

var errSilent = errors.New("no answer from this partition")

// Publish sends events unless their partition is silent or their topic refused.
func (m *unreliable) Publish(ctx context.Context, events []event.Event) []error {
	if time.Since(m.began)%silentEvery < silentEvery-silentFor {
		return m.Kafka.Publish(ctx, events)
	}
	verdicts := make([]error, len(events))
	if m.refuses && time.Since(m.began)%(2*silentEvery) > silentEvery {
		for i := range verdicts {
			verdicts[i] = errRefused
		}
		return verdicts
	}
	var others []event.Event
	var at []int
	for i := range events {
		route, err := m.Route(ctx, events[i].Topic)
		if err == nil && route(&events[i]) == silentOne {
			verdicts[i] = errSilent
			continue
		}
		others, at = append(others, events[i]), append(at, i)
	}
	if len(others) > 0 {
		for i, err := range m.Kafka.Publish(ctx, others) {
			verdicts[at[i]] = err
		}
	}
	return verdicts
}
