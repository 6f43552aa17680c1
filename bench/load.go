package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
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

// payloadFile writes the payloads to a file for ProducerPerformance, one per line.
func (s *stack) payloadFile(payload [][]byte) (string, error) {
	path := filepath.Join(s.dir, "payloads")
	return path, os.WriteFile(path, bytes.Join(payload, []byte("\n")), 0o600)
}

// fill empties the outbox, appends n events as producers do, and vacuums. It starts with a checkpoint: the first change
// of a page after one writes the whole page to the WAL, which a relay close behind its producers does not have to pay.
func (s *stack) fill(ctx context.Context, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryEmptyOutbox, queryCheckpoint); err != nil {
		return err
	}
	const chunk = 64 << 20
	per := min(max(chunk/len(payload[0]), 1), 10_000)
	app := outbox.Appender{MaxPayload: -1}
	err := inParallel(ctx, 1, n, per, func(ctx context.Context, n int) error {
		all := events(topic, n, payload)
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return app.Append(ctx, tx, all...) })
	})
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	return s.exec(ctx, queryVacuumOutbox)
}

// inParallel divides n into parts of at most per, which callers goroutines do. It ends at the first error.
func inParallel(ctx context.Context, callers, n, per int, do func(ctx context.Context, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var begun atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(begun.Add(int64(per))) - per
				if from >= n {
					return
				}
				if err := do(ctx, min(per, n-from)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (s *stack) exec(ctx context.Context, queries ...string) error {
	for _, q := range queries {
		if _, err := s.db.Exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// left returns an error if a drain has left events.
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

// wal returns the bytes of WAL that the server has written so far.
func (s *stack) wal(ctx context.Context) (bytes int64, err error) {
	err = s.db.QueryRow(ctx, queryWAL).Scan(&bytes)
	return bytes, err
}

func since(t time.Time) float64 { return time.Since(t).Seconds() }
