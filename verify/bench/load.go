package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

const (
	payloadSize = 512
	keys        = 100_000
	// distinct payloads are generated before the measurement and reused.
	distinct = 20_000
)

// payloads returns JSON of 512 bytes that compresses like business data, the same in every process.
func payloads(n int) [][]byte {
	rng := rand.New(rand.NewPCG(3, 4))
	words := []string{
		"settled", "pending", "Berlin", "Lisbon", "invoice", "refund", "EUR", "USD", "card", "transfer",
		"monthly", "customer",
	}
	out := make([][]byte, n)
	for i := range out {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"payment_id":"%016x%016x","account_id":"acc-%d","amount":%d,"currency":"EUR","note":"`,
			rng.Uint64(), rng.Uint64(), rng.IntN(keys), rng.IntN(1_000_000))
		for b.Len() < payloadSize-2 {
			fmt.Fprintf(&b, "%s %x ", words[rng.IntN(len(words))], rng.Uint32())
		}
		b.Truncate(payloadSize - 2)
		b.WriteString(`"}`)
		out[i] = b.Bytes()
	}
	return out
}

// events returns n events with these payloads.
func events(topic string, n int, payload [][]byte) []event.Event {
	out := make([]event.Event, n)
	for i := range out {
		out[i] = event.Event{
			ID: event.NewID(), Source: "payments", Topic: topic, Key: fmt.Sprintf("acc-%d", rand.IntN(keys)),
			Type: "PaymentCreated", ContentType: event.ContentTypeJSON, Payload: payload[rand.IntN(len(payload))],
		}
	}
	return out
}

// fill empties the outbox, appends n events as producers do, and vacuums. It starts with a checkpoint: the first change
// of a page after one writes the whole page to the WAL, which a relay close behind its producers does not have to pay.
func (s *stack) fill(ctx context.Context, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryEmptyOutbox, queryCheckpoint); err != nil {
		return err
	}
	if err := s.append(ctx, topic, n, payload); err != nil {
		return err
	}
	return s.exec(ctx, queryVacuumOutbox)
}

// append appends n events in transactions of at most 10,000 and about 64 MiB.
func (s *stack) append(ctx context.Context, topic string, n int, payload [][]byte) error {
	per := min(max(64*mebi/len(payload[0]), 1), 10_000)
	app := outbox.Appender{MaxPayload: -1}
	for ; n > 0; n -= per {
		all := events(topic, min(n, per), payload)
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return app.Append(ctx, tx, all...) })
		if err != nil {
			return fmt.Errorf("append: %w", err)
		}
	}
	return nil
}

func (s *stack) exec(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := s.db.Exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// left returns an error if a drain leaves events.
func (s *stack) left(ctx context.Context) error {
	var n int
	for range 300 { // the last settles follow the last acks
		if err := s.db.QueryRow(ctx, queryLeft).Scan(&n); err != nil || n == 0 {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d events are left in the outbox after the drain", n)
}

// wal returns the bytes of WAL that the server has written so far.
func (s *stack) wal(ctx context.Context) (bytes int64, err error) {
	err = s.db.QueryRow(ctx, queryWAL).Scan(&bytes)
	return bytes, err
}

func since(t time.Time) float64 { return time.Since(t).Seconds() }
