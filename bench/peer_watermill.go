package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	nameWatermill = "Watermill forwarder"
	kindWatermill = "watermill"
	// watermillTopic names the tables that watermill-sql makes: watermill_bench and watermill_offsets_bench.
	watermillTopic = "bench"
	watermillBatch = 1000
	watermillPoll  = 10 * time.Millisecond
	watermillKey   = "key" // of the metadata: what becomes the record's key
)

// watermillSettings stand beside the figures.
var watermillSettings = fmt.Sprintf("v1.5.1, watermill-sql v4.0.0 on pgx, watermill-kafka v3.0.6, SubscribeBatchSize "+
	"%d, PollInterval %v", watermillBatch, watermillPoll)

// fillWatermill publishes to the forwarder's topic in the database, a thousand messages per statement.
func fillWatermill(ctx context.Context, s *stack, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryDropWatermill); err != nil {
		return err
	}
	table, err := wsql.NewPublisher(wsql.BeginnerFromPgx(s.db), wsql.PublisherConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
	}, watermill.NewSlogLogger(quiet()))
	if err != nil {
		return err
	}
	defer func() { _ = table.Close() }()
	to := forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: watermillTopic})
	for some := range slices.Chunk(events(topic, n, payload), 1000) {
		messages := make([]*message.Message, len(some))
		for i, e := range some {
			messages[i] = message.NewMessageWithContext(ctx, e.ID.String(), e.Payload)
			messages[i].Metadata.Set(watermillKey, e.Key)
		}
		if err := to.Publish(topic, messages...); err != nil {
			return err
		}
	}
	return s.exec(ctx, queryVacuumWatermill)
}

// watermillChild forwards the messages in the table, one after the other's ack, as Watermill's subscribers do. The time
// ends with the last ack, before the offset of the last batch is stored.
func watermillChild(ctx context.Context, j job) (a answer, err error) {
	pool, err := pgxpool.New(ctx, j.URL)
	if err != nil {
		return a, err
	}
	defer pool.Close()
	logger := watermill.NewSlogLogger(quiet())
	from, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(pool), wsql.SubscriberConfig{
		SchemaAdapter:  wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: watermillBatch},
		OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true, PollInterval: watermillPoll,
	}, logger)
	if err != nil {
		return a, err
	}
	to, err := watermillPublisher(j, logger)
	if err != nil {
		return a, err
	}
	defer func() { _ = to.Close() }()
	counted := &counting{Publisher: to, want: int64(j.Events), all: make(chan struct{})}
	f, err := forwarder.NewForwarder(from, counted, logger, forwarder.Config{
		ForwarderTopic: watermillTopic,
		CloseTimeout:   5 * time.Second,
	})
	if err != nil {
		return a, err
	}
	ended, started := make(chan error, 1), time.Now()
	go func() { ended <- f.Run(ctx) }()
	select {
	case <-counted.all:
		a.Seconds = since(started)
	case err := <-ended:
		return a, errors.Join(errors.New("the forwarder ended"), err)
	}
	// The subscriber first, so that it can store its offset.
	return a, errors.Join(from.Close(), f.Close(), <-ended)
}

func watermillPublisher(j job, logger watermill.LoggerAdapter) (message.Publisher, error) {
	return wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers: j.Brokers, Marshaler: wkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string,
			error,
		) {
			return m.Metadata.Get(watermillKey), nil
		}),
	}, logger)
}

// counting closes a channel once it has published all messages.
type counting struct {
	message.Publisher
	n    atomic.Int64
	want int64
	all  chan struct{}
}

// Publish publishes messages, and counts them if it succeeds.
func (c *counting) Publish(topic string, messages ...*message.Message) error {
	if err := c.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	n := int64(len(messages))
	if now := c.n.Add(n); now >= c.want && now-n < c.want {
		close(c.all)
	}
	return nil
}
