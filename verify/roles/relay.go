package roles

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/verify/history/tap"
)

// Lease is a relay's. It is short, so that tests can pause a relay for longer.
const Lease = 3 * time.Second

// PublishTimeout is a relay's time-out of a request to a broker.
const PublishTimeout = 3 * time.Second

// publish runs a relay with the real publisher.
func publish(ctx context.Context, p *process) error {
	box, err := relay.Open(p.db, "")
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(p.Brokers, publisher.Config{
		ClientID: p.Name, Timeout: PublishTimeout, RecheckEvery: 2 * time.Second, Pin: box.Pin, Dial: p.dial,
		Logger: p.log,
	})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	feed := relay.FeedTable
	if p.FromWAL {
		feed = relay.FeedWAL
	}
	r, err := relay.New(p.db, tap.Publisher(p.rec, kafka), relay.Config{
		Feed: feed, WALHeartbeat: time.Second, Lease: Lease, HoldAfter: 2 * time.Second,
		DrainTimeout: 5 * time.Second, RescanEvery: 5 * time.Second, ClaimEvents: 2000, ArchiveDays: 2, Name: p.Name,
		Logger: p.log, Observer: tap.Relay(p.rec),
		Check: Identify(box),
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// Identify returns a relay's Check that finds every outbox fit, and waits for a database that is away.
func Identify(box *relay.Outbox) func(ctx context.Context) (outbox string, err error) {
	return func(ctx context.Context) (string, error) {
		for pause := backoff.NewExponentialBackOff(); ; {
			w, err := box.Waits(ctx)
			if err == nil || ctx.Err() != nil {
				return w.Outbox, nil
			}
			_ = sleep.For(ctx, pause.NextBackOff())
		}
	}
}
