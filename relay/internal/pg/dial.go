package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Conn is the part of *pgx.Conn that a session uses.
type Conn interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	IsClosed() bool
	Close(ctx context.Context) error
}

// Dial connects for a session of this name, and calls warned at each warning of the server.
type Dial func(ctx context.Context, name string, warned func(*pgconn.Notice)) (Conn, error)

// DialAs dials as a pool would.
func DialAs(pool *pgxpool.Pool) Dial {
	return func(ctx context.Context, name string, warned func(*pgconn.Notice)) (Conn, error) {
		cfg, err := config(ctx, pool, name)
		if err != nil {
			return nil, err
		}
		cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			if n.SeverityUnlocalized == "WARNING" {
				warned(n)
			}
		}
		conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
		if err != nil {
			return nil, fmt.Errorf("relay: connecting to Postgres: %w", err)
		}
		if cfg.AfterConnect != nil {
			if err := cfg.AfterConnect(ctx, conn); err != nil {
				HangUp(conn)
				return nil, fmt.Errorf("relay: AfterConnect: %w", err)
			}
		}
		if _, err := conn.Exec(ctx, sql.Lasting); err != nil {
			HangUp(conn)
			return nil, fmt.Errorf("relay: connecting to Postgres: %w", err)
		}
		return conn, nil
	}
}

// DialReplication connects as a pool would, for logical replication.
func DialReplication(ctx context.Context, pool *pgxpool.Pool, name string) (*pgconn.PgConn, error) {
	cfg, err := config(ctx, pool, name)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, &cfg.ConnConfig.Config)
	if err != nil {
		return nil, fmt.Errorf("relay: connecting to Postgres for replication: %w", err)
	}
	return conn, nil
}

// config returns a copy of the pool's configuration, for a connection of this name.
func config(ctx context.Context, pool *pgxpool.Pool, name string) (*pgxpool.Config, error) {
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	// Go's strings are UTF-8. In another encoding, which a role or a database may have, the server would take their
	// bytes for other characters.
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, fmt.Errorf("relay: BeforeConnect: %w", err)
		}
	}
	return cfg, nil
}

// HangUp closes a connection, with a context of its own: the caller's has often ended.
func HangUp(conn interface {
	Close(ctx context.Context) error
},
) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
