package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

// paced appends n events, one per transaction, on a fixed schedule.
type paced struct {
	topic   string
	payload [][]byte
	epoch   time.Time
	n       int
	next    atomic.Int64
}

// due returns when an event's transaction should start, after epoch; the first leaves time to connect.
func (p *paced) due(i int) time.Duration {
	return time.Second + time.Duration(i)*time.Second/latencyRate
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
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return outbox.Append(ctx, tx, event.Event{
				Source: "payments", Topic: p.topic, Key: strconv.Itoa(i), Type: "PaymentCreated",
				ContentType: event.ContentTypeJSON, Payload: p.payload[i%len(p.payload)],
			})
		})
		if err != nil {
			return fmt.Errorf("append: %w", err)
		}
	}
}
