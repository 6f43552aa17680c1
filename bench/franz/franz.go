// Package franz is a publisher for the relay over franz-go's idempotent producer, for a comparison with package
// publisher. See docs/decisions/0024-franz-go.md for the results.
package franz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/publisher"
)

// Config of a Publisher. The zero value has what package publisher has by default.
type Config struct {
	// Plain switches the idempotent producer off. Default: it is on.
	Plain bool
	// Timeout bounds how long a call waits for an event; after it the outcome is unknown. Default 10 s.
	Timeout time.Duration
	// BatchBytes bounds the uncompressed records of a batch. Default 1,000,000.
	BatchBytes int32
	// Sent is called with the bytes of each batch on the wire. May be nil.
	Sent func(bytes int)
}

// Publisher is a relay.Publisher and a relay.Router. Partitions are those of package publisher, which also asks for
// metadata.
type Publisher struct {
	route   *publisher.Kafka
	client  *kgo.Client
	timeout time.Duration
}

// New does not connect yet.
func New(brokers []string, cfg Config) (*Publisher, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.BatchBytes == 0 {
		cfg.BatchBytes = 1_000_000
	}
	route, err := publisher.NewKafka(brokers, publisher.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.ClientID("effectonce"), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.SnappyCompression()), kgo.ProducerBatchMaxBytes(cfg.BatchBytes),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(1 << 20),
		// Publish flushes after it has handed over all its records: no batch is sent early or waits.
		kgo.ManualFlushing(),
		kgo.ProduceRequestTimeout(cfg.Timeout / 2), kgo.RequestTimeoutOverhead(cfg.Timeout / 2),
		kgo.MetadataMinAge(250 * time.Millisecond), kgo.MetadataMaxAge(30 * time.Second), kgo.WithHooks(sent{cfg.Sent}),
	}
	if cfg.Plain {
		opts = append(opts, kgo.DisableIdempotentWrite())
	} else {
		// Otherwise a record that was sent cannot be cancelled, and a call would last as long as its broker is away,
		// longer than the lease.
		opts = append(opts, kgo.AllowIdempotentProduceCancellation())
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		_ = route.Close()
		return nil, err
	}
	return &Publisher{route, client, cfg.Timeout}, nil
}

// Close closes the client.
func (p *Publisher) Close() error {
	p.client.Close()
	return p.route.Close()
}

// Route is that of package publisher.
func (p *Publisher) Route(ctx context.Context, topic string) (func(e *event.Event) int32, error) {
	return p.route.Route(ctx, topic)
}

// Publish sends events and returns a verdict for each.
//
// If one record of a partition fails, franz-go fails all later ones, so none of them is written. It does not report
// which record of a batch was refused: then each is sent by itself, in order.
func (p *Publisher) Publish(ctx context.Context, events []event.Event) []error {
	verdicts := make([]error, len(events))
	// Events in flight still get their verdict when ctx ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
	defer cancel()
	records := p.records(ctx, events, verdicts)
	p.produce(ctx, records, verdicts, nil)
	alone := map[int32][]int{}
	for i, err := range verdicts {
		if recordRefused(err) {
			alone[records[i].Partition] = append(alone[records[i].Partition], i)
		}
	}
	for _, list := range alone {
		for at, i := range list {
			if p.produce(ctx, records, verdicts, list[at:at+1]); verdicts[i] != nil {
				for _, later := range list[at+1:] {
					verdicts[later] = fmt.Errorf("not sent: an earlier event of its partition was not acked: %s",
						verdicts[i])
				}
				break
			}
		}
	}
	for i, err := range verdicts {
		if recordRefused(err) {
			verdicts[i] = refusal{err, "record"}
		} else if topicRefused(err) {
			verdicts[i] = refusal{err, "topic"}
		}
	}
	return verdicts
}

// records converts the events. One without a partition gets its verdict.
func (p *Publisher) records(ctx context.Context, events []event.Event, verdicts []error) []kgo.Record {
	records := make([]kgo.Record, len(events))
	routes := map[string]func(e *event.Event) int32{}
	now := time.Now()
	var headers []event.Header
	for i := range events {
		e := &events[i]
		route := routes[e.Topic]
		if route == nil {
			var err error
			if route, err = p.Route(ctx, e.Topic); err != nil {
				verdicts[i] = err
				continue
			}
			routes[e.Topic] = route
		}
		r := &records[i]
		r.Topic, r.Partition, r.Value, r.Timestamp = e.Topic, route(e), e.Payload, now
		if e.Key != "" {
			r.Key = []byte(e.Key)
		}
		headers = event.AppendHeaders(headers[:0], e)
		r.Headers = make([]kgo.RecordHeader, len(headers))
		for h := range headers {
			r.Headers[h] = kgo.RecordHeader(headers[h])
		}
	}
	return records
}

// produce sends the records of a list, or all that have no verdict yet, and waits for their verdicts.
func (p *Publisher) produce(ctx context.Context, records []kgo.Record, verdicts []error, list []int) {
	var wg sync.WaitGroup
	send := func(i int) {
		wg.Add(1)
		verdicts[i] = nil
		p.client.Produce(ctx, &records[i], func(_ *kgo.Record, err error) {
			verdicts[i] = err
			wg.Done()
		})
	}
	if list == nil {
		for i := range records {
			if verdicts[i] == nil {
				send(i)
			}
		}
	}
	for _, i := range list {
		send(i)
	}
	// Independent of ctx: expired records fail only during a flush.
	flushing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() { _ = p.client.Flush(flushing) }() // it waits for other calls as well
	wg.Wait()
}

func recordRefused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord)
}

func topicRefused(err error) bool {
	return errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.InvalidTopicException) ||
		errors.Is(err, kerr.PolicyViolation)
}

// refusal is a certain failure.
type refusal struct {
	error
	scope string
}

func (refusal) Rejected() bool  { return true }
func (r refusal) Scope() string { return r.scope }
func (r refusal) Unwrap() error { return r.error }

// sent counts the bytes on the wire.
type sent struct{ count func(bytes int) }

func (s sent) OnProduceBatchWritten(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.ProduceBatchMetrics) {
	if s.count != nil {
		s.count(m.CompressedBytes)
	}
}
