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
	// distinct payloads are made once and used again and again: a generator within the measurement would be measured.
	distinct = 20_000
)

// payloads makes JSON of 512 bytes that compresses as business data does. The seed is fixed: every process has the
// same.
func payloads(n int) [][]byte { return payloadsOf(n, payloadSize) }

// payloadsOf makes at most n of another size: fewer of large ones, and of those below 150 bytes only the beginning.
func payloadsOf(n, size int) [][]byte {
	const most = 32 << 20 // all together
	n = min(n, max(most/size, 1))
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
		for b.Len() < size-2 {
			fmt.Fprintf(&b, "%s %x ", words[rng.IntN(len(words))], rng.Uint32())
		}
		b.Truncate(size - 2)
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
			ID: event.NewID(), Source: "payments", Topic: topic, Key: fmt.Sprintf("acc-%d", rand.IntN(keys)),
			Type: "PaymentCreated", ContentType: event.ContentTypeJSON, Payload: payload[rand.IntN(len(payload))],
		}
	}
	return out
}

// payloadFile writes the payloads where ProducerPerformance reads them, one a line: it sends the same bytes.
func (s *stack) payloadFile(payload [][]byte) (string, error) {
	path := filepath.Join(s.dir, "payloads")
	return path, os.WriteFile(path, bytes.Join(payload, []byte("\n")), 0o600)
}

// fill empties the outbox and appends n events to it as producers do, then vacuums. The checkpoint comes first: after
// it, the first change of a page writes the whole page to the log, and a relay that follows its producers does not meet
// that.
func (s *stack) fill(ctx context.Context, topic string, n int, payload [][]byte) error {
	return s.fillAs(ctx, filling{topic: topic, n: n, payload: payload})
}

// filling says how an outbox is filled.
type filling struct {
	topic   string
	n       int
	payload [][]byte
	keys    []string // nil: one of 100,000 for each event
	callers int      // of Append, at a time; 0: one
	aged    bool     // a checkpoint comes after it, as it does while a backlog grows for minutes
	pinned  bool     // a snapshot is open during the drain
}

func (s *stack) fillAs(ctx context.Context, f filling) error {
	if err := s.exec(ctx, queryEmptyOutbox, queryCheckpoint); err != nil {
		return err
	}
	const chunk = 64 << 20
	per := min(max(chunk/len(f.payload[0]), 1), 10_000)
	app := outbox.Appender{MaxPayload: -1}
	err := inParallel(ctx, max(f.callers, 1), f.n, per, func(ctx context.Context, n int) error {
		all := events(f.topic, n, f.payload)
		for i := range all {
			if f.keys != nil {
				all[i].Key = f.keys[rand.IntN(len(f.keys))]
			}
		}
		return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return app.Append(ctx, tx, all...) })
	})
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	if err := s.exec(ctx, queryVacuumOutbox); err != nil || !f.aged {
		return err
	}
	return s.exec(ctx, queryCheckpoint)
}

// inParallel divides n into parts of at most per, and has callers at a time do them. The first error ends it.
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
