package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
)

const (
	nameHandOne  = "by hand, one loop"
	nameHandFour = "by hand, four loops"
	kindHand     = "by hand"
	// handBatch rows are taken, published and deleted in a transaction.
	handBatch = 1000
)

// handSettings stand beside the figures.
var handSettings = fmt.Sprintf("select for update skip locked limit %d, kafka-go's Writer, delete, one transaction",
	handBatch)

func fillHand(ctx context.Context, s *stack, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryHandTable, queryEmptyHand); err != nil {
		return err
	}
	const per = 10_000
	for left := n; left > 0; left -= per {
		all := events(topic, min(per, left), payload)
		_, err := s.db.CopyFrom(ctx, pgx.Identifier{"hand_outbox"}, []string{"key", "payload"},
			pgx.CopyFromSlice(len(all), func(i int) ([]any, error) {
				return []any{all[i].Key, all[i].Payload}, nil
			}))
		if err != nil {
			return err
		}
	}
	return s.exec(ctx, queryVacuumHand)
}

// handChild is the hand-written outbox, also that of most small libraries: loops that select rows, publish them and
// delete them within one transaction. One loop keeps the order of the ids, several do not. A crash or a broker that
// does not answer keeps a transaction open.
func handChild(ctx context.Context, j job) (a answer, err error) {
	pool, err := pgxpool.New(ctx, j.URL)
	if err != nil {
		return a, err
	}
	defer pool.Close()
	to := peerWriter(j)
	defer func() { _ = to.Close() }()
	failed := make(chan error, j.Pumps)
	var wg sync.WaitGroup
	started := time.Now()
	for range j.Pumps {
		wg.Go(func() {
			for more := true; more; {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
					more, err = handOnce(ctx, tx, to)
					return err
				})
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	a.Seconds = since(started)
	select {
	case err = <-failed:
	default:
	}
	return a, err
}

// handOnce publishes one batch; more is false if there was no unlocked row.
func handOnce(ctx context.Context, tx pgx.Tx, to *kafka.Writer) (more bool, err error) {
	rows, err := tx.Query(ctx, queryHandTake, handBatch)
	if err != nil {
		return false, err
	}
	var (
		ids      []int64
		messages []kafka.Message
		id       int64
		key      string
		payload  []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &payload}, func() error {
		ids = append(ids, id)
		messages = append(messages, kafka.Message{Key: []byte(key), Value: payload})
		return nil
	})
	if err != nil || len(ids) == 0 {
		return false, err
	}
	if err := to.WriteMessages(ctx, messages...); err != nil {
		return false, err
	}
	_, err = tx.Exec(ctx, queryHandDelete, ids)
	return true, err
}
