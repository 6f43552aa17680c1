package service

import (
	"errors"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolConfig reads a Postgres URL or a key=value string. Its error is a [UsageError] that repeats nothing of the string,
// since pgx's own errors hold it, password and all. name is the setting's, for the error.
func PoolConfig(name, databaseURL string) (*pgxpool.Config, error) {
	if databaseURL == "" {
		return nil, Usage("%s is missing: want postgres://user@host:5432/database", name)
	}
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err == nil {
		return cfg, nil
	}
	if before, _, found := strings.Cut(databaseURL, "://"); found && !strings.Contains(before, "=") {
		if before != "postgres" && before != "postgresql" {
			return nil, Usage("%s: want a URL that begins with postgres://, or key=value settings", name)
		}
		if _, bad := url.Parse(databaseURL); bad != nil {
			return nil, Usage("%s: not a URL: percent-encode what is special in the password (@ %%40, / %%2F, # %%23, ? %%3F), and look at the port", name)
		}
	}
	return nil, Usage("%s: %s: want postgres://user@host:5432/database", name, reason(err))
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
