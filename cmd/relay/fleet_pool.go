package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgtls"
)

const (
	// watchConns is the number of connections to a database that all its sleeping outboxes share.
	watchConns = 2
	// idleConns is how long these stay open after a check with --sleep, unless the URL has less.
	idleConns = 5 * time.Second
)

// sharedPool is a database's pool for checks of sleeping outboxes.
type sharedPool struct {
	*pgxpool.Pool
	users int
}

// pool returns the pool that the outboxes of a database share; release gives it back.
func (f *fleet) pool(m *member) (pool *pgxpool.Pool, release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	shared := f.pools[m.urlText]
	if shared == nil {
		cfg, err := m.db.config()
		if err != nil {
			return nil, nil, err
		}
		if host := pgtls.PlainText(cfg.ConnConfig); host != "" {
			m.log.Warn("the connection to Postgres may not be encrypted: set sslmode=verify-full in the database's URL",
				"host", host)
		}
		cfg.MaxConns = watchConns
		if f.Sleep > 0 { // some databases stay awake while a client is connected
			cfg.MaxConnIdleTime, cfg.HealthCheckPeriod = min(cfg.MaxConnIdleTime, idleConns),
				min(cfg.HealthCheckPeriod, idleConns)
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			return nil, nil, fmt.Errorf("opening the database: %w", err)
		}
		shared = &sharedPool{Pool: pool}
		f.pools[m.urlText] = shared
	}
	shared.users++
	return shared.Pool, func() {
		f.mu.Lock()
		shared.users--
		last := shared.users == 0
		if last {
			delete(f.pools, m.urlText)
		}
		f.mu.Unlock()
		if last {
			shared.Close()
		}
	}, nil
}

// errListedTwice: two names mean the same outbox. Only one of them is served.
var errListedTwice = errors.New("the list has this outbox twice")

// claim reserves an outbox for a member, until the member stops. The outbox's identity changes when its server
// restarts.
func (f *fleet) claim(ctx context.Context, m *member, outbox string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if other := f.claims[outbox]; other != nil && other != m {
		return fmt.Errorf("%w: %q is in the same server, database and schema; take one of them out", errListedTwice,
			other.name)
	}
	if m.outbox != outbox {
		f.unclaim(m)
		f.claims[outbox], m.outbox = m, outbox
	}
	return nil
}

// unclaim frees a member's outbox. The caller holds f.mu.
func (f *fleet) unclaim(m *member) {
	if m.outbox != "" {
		delete(f.claims, m.outbox)
		m.outbox = ""
	}
}
