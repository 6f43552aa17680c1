// Package pgconf reads where Postgres is, and follows what changes there.
package pgconf

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgtls"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/usage"
)

// Database says where Postgres is and who connects to it.
type Database struct {
	// URL is a Postgres URL or a key=value string.
	URL secret.Value
	// Password takes the place of the one in URL, when it is set.
	Password secret.Value
	// AllowPlain accepts an sslmode=disable to another machine. Default: it is refused.
	AllowPlain bool
}

// parse is the function [PoolConfig] for this database, and refuses what speaks in the clear over a network without
// being told to.
func (d Database) parse(name string) (*pgxpool.Config, error) {
	databaseURL, err := d.URL.Reveal()
	if err != nil {
		return nil, usage.Errorf("%s: %w", name, err)
	}
	cfg, err := PoolConfig(name, databaseURL)
	if err != nil {
		return nil, err
	}
	if host := pgtls.Disabled(cfg.ConnConfig); host != "" && !d.AllowPlain {
		return nil, usage.Errorf("%s: sslmode=disable sends every event in the clear to %s, and lets anybody on the "+
			"way answer in its place: "+
			"set sslmode=verify-full and sslrootcert, or --database-plaintext where the network itself is private",
			name, host)
	}
	return cfg, nil
}

// PoolConfig is the function [PoolConfig], and follows what changes: user, password and certificates are read anew for
// each connection, so that a rotated secret needs no restart. Another host, port or database is refused then, since
// half of the connections would be to the one and half to the other.
func (d Database) PoolConfig(name string) (*pgxpool.Config, error) {
	cfg, err := d.parse(name)
	if err != nil {
		return nil, err
	}
	// Also for a connection that is not the pool's, as of a migration.
	if err := d.setPassword(name, cfg.ConnConfig); err != nil {
		return nil, &usage.Error{Err: err}
	}
	cfg.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error { return d.refresh(name, conn) }
	return cfg, nil
}

func (d Database) refresh(name string, conn *pgx.ConnConfig) error {
	pool, err := d.parse(name)
	if err != nil {
		return err
	}
	fresh := pool.ConnConfig
	if fresh.Host != conn.Host || fresh.Port != conn.Port || fresh.Database != conn.Database {
		return fmt.Errorf("%s names another server or database than at the start: restart the process to move it there",
			name)
	}
	conn.User, conn.Password, conn.TLSConfig, conn.Fallbacks = fresh.User, fresh.Password, fresh.TLSConfig,
		fresh.Fallbacks
	return d.setPassword(name, conn)
}

// setPassword sets the password that takes the place of the URL's.
func (d Database) setPassword(name string, conn *pgx.ConnConfig) (err error) {
	if !d.Password.IsSet() {
		return nil
	}
	if conn.Password, err = d.Password.Reveal(); err != nil {
		return fmt.Errorf("the password of %s: %w", name, err)
	}
	return nil
}

// ConnConfig is the configuration of the pool's next connection, for a connection of one's own.
func ConnConfig(ctx context.Context, pool *pgxpool.Pool) (*pgx.ConnConfig, error) {
	cfg := pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	return cfg.ConnConfig, nil
}

// parameter is what the server may have as a setting. pgx takes all that stands before a = for one.
var parameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.$]*$`)

// PoolConfig reads a Postgres URL or a key=value string. Its error is a [usage.Error] that repeats nothing of the
// string, since pgx's own errors hold it, password and all. name is the setting's, for the error.
func PoolConfig(name, databaseURL string) (*pgxpool.Config, error) {
	if databaseURL == "" {
		return nil, usage.Errorf("%s is missing: want postgres://user@host:5432/database", name)
	}
	switch first, _ := utf8.DecodeRuneInString(databaseURL); first {
	case '"', '\'':
		return nil, usage.Errorf("%s begins with a quotation mark: take the marks around it away", name)
	case '\ufeff':
		return nil, usage.Errorf("%s begins with a byte order mark, which cannot be seen: write it without one (in an "+
			"editor: UTF-8 without BOM)", name)
	}
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err == nil {
		for key := range cfg.ConnConfig.RuntimeParams {
			if !parameter.MatchString(key) {
				return nil, usage.Errorf("%s: has a setting whose name is none: want "+
					"postgres://user@host:5432/database, or key=value settings", name)
			}
		}
		return cfg, nil
	}
	if before, _, found := strings.Cut(databaseURL, "://"); found && !strings.Contains(before, "=") {
		if before != "postgres" && before != "postgresql" {
			return nil, usage.Errorf("%s: want a URL that begins with postgres://, or key=value settings", name)
		}
		if _, bad := url.Parse(databaseURL); bad != nil {
			return nil, usage.Errorf("%s: not a URL: percent-encode what is special in the password (@ %%40, / %%2F, "+
				"# %%23, ? %%3F), and look at the port", name)
		}
	}
	return nil, usage.Errorf("%s: %s: want postgres://user@host:5432/database", name, reason(err))
}

// reason is the fixed part of pgx's message: what stands before it repeats the string, and what follows may.
func reason(err error) string {
	bad, ok := errors.AsType[*pgconn.ParseConfigError](err)
	if !ok {
		return "cannot be read"
	}
	text := bad.Error()
	if cause := bad.Unwrap(); cause != nil {
		text = strings.TrimSuffix(text, " ("+cause.Error()+")")
	}
	i := strings.LastIndex(text, "`: ")
	if i < 0 {
		return "cannot be read"
	}
	// Some messages end in the value that they refuse.
	text, _, _ = strings.Cut(text[i+len("`: "):], ": ")
	return text
}
