package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/migrations"
)

// poolSize is enough for status, pins and probes: a relay has its own connections.
const poolSize = 4

// urlSetting is how errors name the setting.
const urlSetting = "--database-url (RELAY_DATABASE_URL, RELAY_DATABASE_URL_FILE)"

// config parses the URL. It does not connect.
func (d database) config() (*pgxpool.Config, error) {
	password := d.DatabasePassword
	if d.PasswordCommand.IsSet() {
		if password.IsSet() {
			return nil, service.Usage("--database-password and --database-password-command are both set: leave one out")
		}
		password = d.PasswordCommand.Value
	}
	cfg, err := pgconf.Database{URL: d.DatabaseURL, Password: password, AllowPlain: d.Plaintext}.PoolConfig(urlSetting)
	if err != nil {
		return nil, err
	}
	if databaseURL, err := d.DatabaseURL.Reveal(); err == nil && !strings.Contains(databaseURL, "pool_max_conns") {
		cfg.MaxConns = poolSize
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "effectonce relay"
	}
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // Go's, as for a relay's own connections
	// A host that drops packets must not hold a command for minutes.
	if cfg.ConnConfig.ConnectTimeout == 0 || cfg.ConnConfig.ConnectTimeout > time.Minute {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	return cfg, nil
}

// pool opens the database; it does not wait for an answer.
func (d database) pool(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	return pool, nil
}

// withPool runs do with a pool, for timeout at most.
func (d database) withPool(ctx context.Context, timeout time.Duration,
	do func(ctx context.Context, pool *pgxpool.Pool) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pool, err := d.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(ctx, pool)
}

// withReader is withPool for what only reads. It does not wait long for a lock, and names who holds it.
func (d database) withReader(ctx context.Context, timeout time.Duration,
	do func(ctx context.Context, pool *pgxpool.Pool) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cfg, err := d.config()
	if err != nil {
		return err
	}
	doctor.LimitWaits(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	defer pool.Close()
	err = do(ctx, pool)
	if who := doctor.Blocked(ctx, pool, d.Schema, err); who != "" {
		return fmt.Errorf("%s: %w", who, err)
	}
	return err
}

// pauses are those between attempts to reach a server: from 100 ms to 5 s, without end.
func pauses() backoff.BackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}

// untilAnswered repeats do while Postgres is down, and logs that once. Every other error, and the end of ctx, ends it.
func untilAnswered(ctx context.Context, log *slog.Logger, do func(context.Context) error) error {
	pause := pauses()
	for said := false; ; said = true {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || refusal(err) != "" || !pgerr.Away(err) {
			return withAdvice(err)
		}
		if !said {
			log.Warn("postgres does not answer; waiting for it", "error", withAdvice(err))
		}
		if sleep.For(ctx, pause.NextBackOff()) != nil {
			return err
		}
	}
}

// ensureSchema migrates if requested, and refuses tables that this binary does not work on.
func (d database) ensureSchema(ctx context.Context, log *slog.Logger, pool *pgxpool.Pool, migrate bool) error {
	return untilAnswered(ctx, log, func(ctx context.Context) error { return d.checkSchema(ctx, log, pool, migrate) })
}

// checkSchema is one try of ensureSchema.
func (d database) checkSchema(ctx context.Context, log *slog.Logger, pool *pgxpool.Pool, migrate bool) error {
	options := migrations.Options{Schema: d.Schema, Sets: []migrations.Set{migrations.Outbox}, Logger: log}
	if migrate {
		conn, err := pgconf.ConnConfig(ctx, pool)
		if err != nil {
			return err
		}
		if err := migrations.Up(ctx, conn, options); err != nil {
			return err
		}
	}
	return migrations.Check(ctx, pool, options)
}

// reportKafka logs once that Kafka does not answer at the start, and once that it does. Without events nothing else
// would show it.
func reportKafka(ctx context.Context, log *slog.Logger, conn *kafkaconn.Conn) {
	client, closeIdle := conn.Client(kafkaTimeout)
	defer closeIdle()
	pause := pauses()
	for said := false; ; said = true {
		_, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if said {
				log.Info("kafka answers")
			}
			return
		case !said:
			log.Error("kafka does not answer as it should; events wait until it does: look at "+conn.LookAt(),
				"error", err)
		}
		_ = sleep.For(ctx, pause.NextBackOff())
	}
}
