package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

const (
	payloadSize = 512
	keys        = 100_000
	// distinct payloads are made once and used again and again: a generator within the measurement would be measured.
	distinct = 20_000
)

// payloads makes JSON of 512 bytes that compresses as business data does. The seed is fixed: every process has the same.
func payloads(n int) [][]byte {
	rng := rand.New(rand.NewPCG(3, 4))
	words := []string{"settled", "pending", "Berlin", "Lisbon", "invoice", "refund", "EUR", "USD", "card", "transfer", "monthly", "customer"}
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

// events makes n events over those payloads.
func events(topic string, n int, payload [][]byte) []event.Event {
	out := make([]event.Event, n)
	for i := range out {
		out[i] = event.Event{
			ID: event.NewID(), Source: "payments", Topic: topic, Key: fmt.Sprintf("acc-%d", rand.IntN(keys)), Type: "PaymentCreated",
			ContentType: event.ContentTypeJSON, Payload: payload[rand.IntN(len(payload))],
		}
	}
	return out
}

// payloadFile writes the payloads where ProducerPerformance reads them, one a line: it sends the same bytes.
func (s *stack) payloadFile(payload [][]byte) (string, error) {
	path := filepath.Join(s.dir, "payloads")
	return path, os.WriteFile(path, bytes.Join(payload, []byte("\n")), 0o600)
}

// fill empties the outbox and appends n events to it as producers do, then vacuums. The checkpoint comes first: after it,
// the first change of a page writes the whole page to the log, and a relay that follows its producers does not meet that.
func (s *stack) fill(ctx context.Context, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryEmptyOutbox, queryCheckpoint); err != nil {
		return err
	}
	const chunk = 64 << 20
	per := min(max(chunk/len(payload[0]), 1), 10_000)
	app := outbox.Appender{MaxPayload: -1}
	for left := n; left > 0; left -= per {
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			return app.Append(ctx, tx, events(topic, min(per, left), payload)...)
		})
		if err != nil {
			return fmt.Errorf("append: %w", err)
		}
	}
	return s.exec(ctx, queryVacuumOutbox)
}

func (s *stack) exec(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := s.db.Exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// left fails when a drain has not taken everything.
func (s *stack) left(ctx context.Context) error {
	var n int
	if err := s.db.QueryRow(ctx, queryLeft).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("%d events are left in the outbox after the drain", n)
	}
	return nil
}

// wal is how many bytes of log the server has written since it was made.
func (s *stack) wal(ctx context.Context) (bytes int64, err error) {
	err = s.db.QueryRow(ctx, queryWAL).Scan(&bytes)
	return bytes, err
}

func since(t time.Time) float64 { return time.Since(t).Seconds() }
