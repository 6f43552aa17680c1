//go:build failpoints

package proof

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

const consumerName = "ledger"

func runWorker(ctx context.Context, s *stage) error {
	bound, _ := strconv.Atoi(os.Getenv(envBound))
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	dedup := inbox.ByID
	if os.Getenv(envDedup) == byWatermark {
		dedup = inbox.ByWatermark
	}
	// Hundreds of deaths in the same place are not what CrashAttempts is for.
	in, err := inbox.New(s.db, consumerName, inbox.Config{
		Dedup:         dedup,
		MaintainEvery: 300 * time.Millisecond, ReleaseEvery: 100 * time.Millisecond, CrashAttempts: 1000, ParkedPerKey: bound, Backoff: 10 * time.Millisecond, Logger: log,
	})
	if err != nil {
		return err
	}
	c, err := consumer.New(in.Batch(book), s.brokers, []string{s.topic}, consumer.Config{
		Group: s.topic, Batch: 20, SessionTimeout: time.Second, HeartbeatInterval: 100 * time.Millisecond, RebalanceTimeout: time.Second,
		CommitEvery: 50 * time.Millisecond, ResumeEvery: 200 * time.Millisecond, FetchWait: 100 * time.Millisecond, Logger: log,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}

var errPoison = errors.New("this effect fails until it is allowed")

// book is the effect: a row for each event, and nothing that would hide a second one.
func book(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	var errs []error
	for i, e := range events {
		switch e.Headers["kind"] {
		case kindSkip:
			errs = append(errs, inbox.At(i, inbox.Skip))
			continue
		case kindPoison:
			var ok bool
			if err := tx.QueryRow(ctx, `select exists (select from allowed where id = $1)`, e.ID).Scan(&ok); err != nil {
				return err
			}
			if !ok {
				errs = append(errs, inbox.At(i, inbox.Terminal("POISON", errPoison)))
				continue
			}
		}
		version, err := strconv.ParseInt(e.Headers["version"], 10, 64)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into effect (id, account, version) values ($1, $2, $3)`, e.ID, e.Key, version); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
