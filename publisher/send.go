package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// A misrouted request is repeated this often at once, which covers a planned move of a leader. After that the caller
// repeats it.
const (
	repeats     = 3
	repeatAfter = 50 * time.Millisecond
)

// groupResult is the result of a group. The first acked events are in the log. The next tried events have err. The rest
// was not sent, but if maybePublished is set, an earlier request may have written any of them.
type groupResult struct {
	acked, tried   int
	err            error
	maybePublished bool
}

// sendGroup sends the events of one partition and writes the verdicts that are not nil.
func (k *Kafka) sendGroup(ctx context.Context, r *round, g group, events []event.Event, verdicts []error) {
	out := k.deliver(ctx, r, g, events)
	if out.err == nil {
		return
	}
	rest := g.order[out.acked:]
	for _, i := range rest[:out.tried] {
		verdicts[i] = out.err
	}
	later := out.err // told to stop: true for all of them
	if out.tried > 0 {
		later = behind(out.err)
		if out.maybePublished {
			later = fmt.Errorf("publisher: topic %s partition %d: outcome unknown: an answer was lost before %v",
				g.to.topic.name, g.to.id, out.err)
		}
	}
	for _, i := range rest[out.tried:] {
		verdicts[i] = later
	}
}

// deliver sends one batch after the other while it holds the partition's semaphore, and splits a batch that the broker
// finds too large.
func (k *Kafka) deliver(ctx context.Context, r *round, g group, events []event.Event) groupResult {
	select {
	case g.to.send <- struct{}{}:
	default:
		r.rest()
		err := k.acquire(ctx, g.to.send)
		r.resume()
		if err != nil {
			return groupResult{err: stopped(err)}
		}
	}
	defer func() { <-g.to.send }()
	b := k.pool.Get().(*batch)
	defer k.pool.Put(b)

	t := g.to.topic
	acked, most, maybePublished, ownTime := 0, len(g.order), false, false
	for acked < len(g.order) {
		if err := k.halted(ctx); err != nil {
			return groupResult{acked: acked, err: stopped(err)}
		}
		if rests := k.wire.rests(g.to.leader.Load()); rests > 0 {
			r.rest()
			_ = k.pause(ctx, rests)
			r.resume()
			continue // another answer may have asked for more
		}
		limit := k.cfg.BatchBytes
		if lower := int(t.limit.Load()); lower > 0 {
			limit = min(limit, lower)
		}
		n := b.fill(events, g.order[acked:], limit, most)
		if ownTime {
			b.floor = time.Time{}
		}
		if err := b.seal(time.Now()); err != nil {
			return groupResult{acked, n, err, maybePublished}
		}
		first, lost, err := -1, false, k.fits(b)
		if err == nil {
			first, lost, err = k.produce(ctx, r, g.to, b)
		}
		maybePublished = maybePublished || lost
		if err == nil {
			acked, most = acked+n, len(g.order)
			continue
		}
		switch c := classify(err); {
		case errors.Is(err, kafka.InvalidTimestamp) && !b.floor.IsZero():
			ownTime = true // the clock of the events' own time may be fast
		case c == tooLarge && n > 1:
			t.limit.Store(int64(max(len(b.records)/2, 1)))
		case c == badRecord && n > 1:
			// The broker may name the first record that it refuses. The records before it are sent first, then it
			// alone, so that the refusal is certain.
			if most = n / 2; first >= 0 && first < n {
				most = max(first, 1)
			}
		default:
			return groupResult{acked, n, verdictOf(c, g.to, err, maybePublished), maybePublished}
		}
	}
	return groupResult{acked: acked}
}

// verdictOf returns the verdict of events whose last request failed with this error. maybePublished: an earlier
// request may have written them.
func verdictOf(c class, to *partition, err error, maybePublished bool) error {
	var r *outcome.Refusal
	switch c {
	case tooLarge, badRecord:
		r = &outcome.Refusal{
			Code: codeOf(err), Err: fmt.Errorf("publisher: topic %s refuses this record: %w", to.topic.name, err),
		}
	case topicRefuse:
		r = refusal(to.topic.name, err)
	default:
		return fmt.Errorf("publisher: topic %s partition %d: outcome unknown: %w", to.topic.name, to.id, err)
	}
	r.MaybePublished = maybePublished
	return r
}

// requestRest bounds the size of a request without its batch: the header and the topic's name.
const requestRest = 4 << 10

// fits refuses a batch above RequestBytes: a broker would close the connection without an answer.
func (k *Kafka) fits(b *batch) error {
	if n := len(b.frame) + requestRest; n > k.cfg.RequestBytes {
		return fmt.Errorf("publisher: a request of %d bytes, and the brokers take %d: %w", n, k.cfg.RequestBytes,
			kafka.MessageSizeTooLarge)
	}
	return nil
}

// produce sends a sealed batch, and sends it again if it was misrouted. first is the lowest index of the records that
// the broker named as refused, or -1. lost: the answer to an earlier request was lost, so the batch may be in the log
// whatever err says.
func (k *Kafka) produce(ctx context.Context, r *round, to *partition, b *batch) (first int, lost bool, err error) {
	var waits backoff.BackOff
	for {
		first, err = k.attempt(ctx, r, to, b)
		if err == nil {
			return first, lost, nil
		}
		if k.cfg.Observer.Failed != nil {
			k.cfg.Observer.Failed(FailedInfo{Topic: to.topic.name, Partition: int32(to.id), Events: b.count, Err: err})
		}
		c := classify(err)
		if c == tooLarge || c == badRecord || c == topicRefuse {
			return first, lost, err
		}
		to.topic.doubt()
		if c != misrouted && c != noTopic {
			// The transport reads metadata soon by itself; a forced refresh would disturb the other partitions.
			return first, lost, err
		}
		k.wire.refresh()
		if waits == nil {
			waits = backoff.WithMaxRetries(backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(repeatAfter), backoff.WithMultiplier(3)), repeats)
		}
		r.rest()
		goOn := k.pause(ctx, waits.NextBackOff())
		r.resume()
		if !goOn || k.clusterChanged(ctx, to.topic) {
			return first, lost, err
		}
		lost = lost || answerLost(err)
	}
}

// attempt sends a batch in a request of its own or a shared one. It does not end with ctx: a request that was sent has
// an outcome, which is unknown without the answer. Config.Timeout bounds it.
func (k *Kafka) attempt(ctx context.Context, r *round, to *partition, b *batch) (first int, err error) {
	started := time.Now()
	said, err := r.post(context.WithoutCancel(ctx), to, b)
	if err != nil {
		b.inFlight = true
		r.rest()
		defer r.resume()
		return -1, k.metadataError(ctx, to.topic.name, err)
	}
	if refused := errorOf(said); refused != nil {
		first = -1
		for i := range said.RecordErrors {
			if n := int(said.RecordErrors[i].BatchIndex); first < 0 || n < first {
				first = n
			}
		}
		return first, refused
	}
	if k.cfg.Observer.Produced != nil {
		k.cfg.Observer.Produced(ProducedInfo{
			Topic: to.topic.name, Partition: int32(to.id), Events: b.count, Bytes: len(b.frame),
			Took: time.Since(started),
		})
	}
	return -1, nil
}

// metadataError replaces the transport's "topic not found", which it returns also if it could reach no broker.
func (k *Kafka) metadataError(ctx context.Context, topic string, err error) error {
	if errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) ||
		errors.Is(err, kafka.BrokerNotAvailable) {
		if _, _, metaErr := k.describe(ctx, topic); metaErr != nil && ctx.Err() == nil {
			return metaErr
		}
	}
	return err
}

// pause waits for d. It returns false if the call is to stop.
func (k *Kafka) pause(ctx context.Context, d time.Duration) bool {
	if d == backoff.Stop {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-k.done:
		return false
	}
}
