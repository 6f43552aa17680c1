package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

// paced commits n transactions with one event each on a schedule.
type paced struct {
	schedule
	topic     string
	epoch     time.Time
	n         int
	next      atomic.Int64
	committed func()        // nil: nothing is told of a COMMIT
	direct    *kafka.Writer // sends the event after the COMMIT of a row; nil: the event is appended
}

// due returns when an event's transaction should start, after epoch; the first leaves time to connect.
func (p *paced) due(i int) time.Duration {
	return time.Second + time.Duration(float64(i)/p.rate*float64(time.Second))
}

func (p *paced) run(ctx context.Context, url string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, latencyWriters)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			if errs[w] = p.write(ctx, url); errs[w] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (p *paced) write(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for {
		i := int(p.next.Add(1)) - 1
		if i >= p.n {
			return nil
		}
		if err := pause(ctx, p.due(i)-time.Since(p.epoch)); err != nil {
			return err
		}
		if err := p.commit(ctx, conn, i); err != nil {
			return err
		}
	}
}

func (p *paced) commit(ctx context.Context, conn *pgx.Conn, i int) error {
	key, payload := strconv.Itoa(i), p.payload(i)
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if p.direct != nil {
			_, err := tx.Exec(ctx, queryCredit, uuid.New())
			return err
		}
		return outbox.Append(ctx, tx, event.Event{
			Source: "payments", Topic: p.topic, Key: key, Type: "PaymentCreated",
			ContentType: event.ContentTypeJSON, Payload: payload,
		})
	})
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	if p.committed != nil {
		p.committed()
	}
	if p.direct != nil {
		return p.direct.WriteMessages(ctx, kafka.Message{Key: []byte(key), Value: payload})
	}
	return nil
}
