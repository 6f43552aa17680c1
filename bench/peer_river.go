package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/segmentio/kafka-go"
)

const (
	nameRiver = "River, one job per event"
	kindRiver = "river"
	// As in River's benchmark.
	riverWorkers = 2000
)

// riverSettings stand beside the figures.
var riverSettings = fmt.Sprintf("v0.51.1, %d workers, FetchCooldown 2 ms, FetchPollInterval 20 ms, kafka-go's Writer",
	riverWorkers)

// riverJob is an event as a job. The payload is text, because jsonb would change its bytes.
type riverJob struct {
	Key     string `json:"key"`
	Payload string `json:"payload"`
}

// Kind is what River stores beside the job.
func (riverJob) Kind() string { return "publish" }

func fillRiver(ctx context.Context, s *stack, topic string, n int, payload [][]byte) error {
	driver := riverpgxv5.New(s.db)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrations of River: %w", err)
	}
	if err := s.exec(ctx, queryEmptyRiver); err != nil {
		return err
	}
	client, err := river.NewClient(driver, &river.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	const per = 5000
	for left := n; left > 0; left -= per {
		var jobs []river.InsertManyParams
		for _, e := range events(topic, min(per, left), payload) {
			jobs = append(jobs, river.InsertManyParams{Args: riverJob{Key: e.Key, Payload: string(e.Payload)}})
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return s.exec(ctx, queryVacuumRiver)
}

// riverChild works the jobs; each publishes its event and waits for the ack, while the Writer batches concurrent ones.
// The time ends with the last ack, before River marks the last jobs as completed.
func riverChild(ctx context.Context, j job) (a answer, err error) {
	cfg, err := pgxpool.ParseConfig(j.URL)
	if err != nil {
		return a, err
	}
	cfg.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return a, err
	}
	defer pool.Close()
	to := peerWriter(j)
	defer func() { _ = to.Close() }()
	var published atomic.Int64
	all := make(chan struct{})
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, one *river.Job[riverJob]) error {
		err := to.WriteMessages(ctx, kafka.Message{Key: []byte(one.Args.Key), Value: []byte(one.Args.Payload)})
		if err == nil && published.Add(1) == int64(j.Events) {
			close(all)
		}
		return err
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: quiet(), Workers: workers, Queues: map[string]river.QueueConfig{
			river.QueueDefault: {MaxWorkers: riverWorkers},
		},
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
	})
	if err != nil {
		return a, err
	}
	started := time.Now()
	if err := client.Start(ctx); err != nil {
		return a, err
	}
	select {
	case <-all:
		a.Seconds = since(started)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return a, errors.Join(err, client.Stop(context.WithoutCancel(ctx)))
}
