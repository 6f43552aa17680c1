package proof

import (
	"context"
	"errors"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
)

const consumerName = "ledger"

func runWorker(ctx context.Context, s *stage) error {
	bound, backoff, drain, parallel := 0, 10*time.Millisecond, 20*time.Second, 0
	if os.Getenv(envUnusual) != "" {
		bound, backoff, drain = 1, 3*time.Second, 300*time.Millisecond // told to stop, it leaves a range undecided
		parallel = 3
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	dedup := inbox.ByID
	if os.Getenv(envDedup) == byWatermark {
		dedup, parallel = inbox.ByWatermark, 0
	}
	// Hundreds of kills at one effect must not reach CrashAttempts.
	in, err := inbox.New(s.db, consumerName, inbox.Config{
		Dedup:         dedup,
		MaintainEvery: 300 * time.Millisecond, ReleaseEvery: 100 * time.Millisecond, CrashAttempts: 1000,
		ParkedPerKey: bound, Backoff: backoff, Parallel: parallel, Logger: log,
	})
	if err != nil {
		return err
	}
	c, err := consumer.New(in.Batch(insertEffects), s.brokers, []string{s.topic}, consumer.Config{
		Group: s.topic, Batch: 20, SessionTimeout: time.Second, HeartbeatInterval: 100 * time.Millisecond,
		RebalanceTimeout: time.Second, CommitEvery: 50 * time.Millisecond, ResumeEvery: 200 * time.Millisecond,
		FetchWait: 100 * time.Millisecond, DrainTimeout: drain, Dial: s.dial, Logger: log,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}

var (
	errPoison = errors.New("this effect fails until it is allowed")
	errPasses = errors.New("this effect fails at times")
)

// One of so many effects fails and succeeds the next time, which is later in the unusual configuration.
const (
	passes        = 200
	passesUnusual = 20
)

// insertEffects inserts a row for each event, without a constraint that could hide a second one.
func insertEffects(ctx context.Context, tx pgx.Tx, events []event.Event) error {
	var errs []error
	share := passes
	if os.Getenv(envUnusual) != "" {
		share = passesUnusual
	}
	for _, e := range events {
		if mrand.IntN(share) == 0 && os.Getenv(envCalm) == "" {
			errs = append(errs, inbox.Of(e, errPasses))
			continue
		}
		switch e.Headers["kind"] {
		case kindSkip:
			errs = append(errs, inbox.Of(e, inbox.Skip))
			continue
		case kindPoison, kindDrop:
			var ok bool
			if err := tx.QueryRow(ctx, `select exists (select from allowed where id = $1)`, e.ID).Scan(
				&ok); err != nil {
				return err
			}
			if !ok {
				errs = append(errs, inbox.Of(e, outcome.Terminal("POISON", errPoison)))
				continue
			}
		}
		version, err := strconv.ParseInt(e.Headers["version"], 10, 64)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "-- proof: effect\n"+`insert into effect (id, account, version) values ($1, $2, $3)`,
			e.ID, e.Key, version); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
