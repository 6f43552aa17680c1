package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

const (
	nameEach  = "Each, one insert an event"
	nameTwin  = "by kafka-go, the same inserts, no inbox"
	nameWhole = "Batch, one insert a batch"
	// twinWait is how long the twin waits for more records of a batch, as a consumer does by default.
	twinWait = 5 * time.Millisecond
)

// consumerCase reads a backlog in Kafka, with one ledger row for each event: by a consumer with an inbox and its
// defaults, and by the same inserts in the same transactions on kafka-go's group, without deduplication. The time is
// from the first effect to the last COMMIT: joining a group waits for seconds.
func consumerCase(ctx context.Context, s *stack, o options, rep *report) error {
	if err := s.exec(ctx, queryLedgerTable); err != nil {
		return err
	}
	topic, drop, err := s.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	n := o.inboxBatched
	if err := s.fill(ctx, topic, n, payloads(distinct)); err != nil {
		return err
	}
	_, err = child(ctx, job{URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Relay: true, Events: n, Pumps: o.pumps})
	if err != nil {
		return err
	}
	rep.note("consumer", fmt.Sprintf("%d events of %d bytes in %d partitions of a topic, at most %d in a transaction",
		n, payloadSize, partitions, inboxBatch))
	for turn := range o.repeats + 1 {
		for _, k := range []struct {
			name string
			run  func(ctx context.Context, topic, group string, c *credited) error
		}{{nameEach, s.consumeEach}, {nameTwin, s.consumeNatively}, {nameWhole, s.consumeBatch}} {
			if err := s.exec(ctx, queryEmptyInbox, queryVacuumInbox, queryCheckpoint); err != nil {
				return err
			}
			running, end := context.WithCancel(ctx)
			c := &credited{end: end}
			c.left.Store(int64(n))
			before := serverCPU()
			err := k.run(running, topic, uuid.NewString(), c)
			end()
			if left := c.left.Load(); left > 0 || err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("%s: %d of %d events are not applied: %v", k.name, left, n, err)
			}
			seconds := c.last.Sub(time.Unix(0, c.first.Load())).Seconds()
			rep.add(figure{
				Case: "consumer", Name: k.name, Turn: turn, Events: n, Seconds: seconds, Rate: float64(n) / seconds,
				PostgresCPU: serverCPU().minus(before).postgres * 1e6 / float64(n),
			})
		}
	}
	rep.atLeast("consumer", nameEach, 30_000)
	rep.ratio("consumer", nameEach, nameTwin, 0.8)
	return nil
}

// credited is the progress of a run.
type credited struct {
	first atomic.Int64 // when the first effect began, in nanoseconds
	left  atomic.Int64
	last  time.Time // of the last COMMIT
	end   func()
}

func (c *credited) begins() {
	if c.first.Load() == 0 {
		c.first.CompareAndSwap(0, time.Now().UnixNano())
	}
}

// committed counts effects, and ends the run with the last one.
func (c *credited) committed(n int) {
	if c.left.Add(-int64(n)) == 0 {
		c.last = time.Now()
		c.end()
	}
}

func (s *stack) consumeEach(ctx context.Context, topic, group string, c *credited) error {
	return s.consume(ctx, topic, group, c, func(in *inbox.Inbox) inbox.Handler {
		return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			c.begins()
			return credit(ctx, tx, e)
		})
	})
}

func (s *stack) consumeBatch(ctx context.Context, topic, group string, c *credited) error {
	return s.consume(ctx, topic, group, c, func(in *inbox.Inbox) inbox.Handler {
		return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
			c.begins()
			return creditAll(ctx, tx, events)
		})
	})
}

// consume runs a consumer whose group is that of its inbox.
func (s *stack) consume(ctx context.Context, topic, group string, c *credited,
	handler func(*inbox.Inbox) inbox.Handler,
) error {
	in, err := inbox.New(s.db, group, inbox.Config{
		Schema: "public", Logger: quiet(),
		Observer: inbox.Observer{Handled: func(i inbox.HandledInfo) { c.committed(i.Applied) }},
	})
	if err != nil {
		return err
	}
	one, err := consumer.New(handler(in), s.brokers, []string{topic}, consumer.Config{
		Start: consumer.StartEarliest, Logger: quiet(),
	})
	if err != nil {
		return err
	}
	return one.Run(ctx)
}

// consumeNatively has a goroutine for each partition, as the consumer has.
func (s *stack) consumeNatively(ctx context.Context, topic, group string, c *credited) error {
	members, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: group, Brokers: s.brokers, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
	})
	if err != nil {
		return err
	}
	defer func() { _ = members.Close() }()
	generation, err := members.Next(ctx)
	if err != nil {
		return err
	}
	failed := make(chan error, partitions)
	for _, p := range generation.Assignments[topic] {
		generation.Start(func(ctx context.Context) { failed <- s.creditPartition(ctx, generation, topic, p, c) })
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-failed:
		return err
	}
}

func (s *stack) creditPartition(ctx context.Context, g *kafka.Generation, topic string, p kafka.PartitionAssignment,
	c *credited,
) error {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: s.brokers, Topic: topic, Partition: p.ID, MinBytes: 1, MaxBytes: mebi,
		QueueCapacity: 2 * inboxBatch,
	})
	defer func() { _ = r.Close() }()
	if err := r.SetOffset(p.Offset); err != nil {
		return err
	}
	for {
		first, err := r.FetchMessage(ctx)
		if err != nil {
			return err
		}
		batch := []kafka.Message{first}
		waiting, cancel := context.WithTimeout(ctx, twinWait)
		for len(batch) < inboxBatch {
			next, err := r.FetchMessage(waiting)
			if err != nil {
				break
			}
			batch = append(batch, next)
		}
		cancel()
		c.begins()
		if err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			for i := range batch {
				id, err := idOf(&batch[i])
				if err == nil {
					_, err = tx.Exec(ctx, queryCredit, id)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		next := map[string]map[int]int64{topic: {p.ID: batch[len(batch)-1].Offset + 1}}
		if err := g.CommitOffsets(next); err != nil {
			return err
		}
		c.committed(len(batch))
	}
}

func idOf(m *kafka.Message) (uuid.UUID, error) {
	for i := range m.Headers {
		if m.Headers[i].Key == event.HeaderID {
			return uuid.ParseBytes(m.Headers[i].Value)
		}
	}
	return uuid.Nil, errors.New("a record without an id")
}
