package reads

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// featureNotSupported is also a standby's answer to the begin of a read-write transaction.
const featureNotSupported = "0A000"

// blockedError is the end of a wait for a lock.
type blockedError struct {
	who string
	error
}

func (e *blockedError) Unwrap() error { return e.error }

// Away explains an error of a database, and says what to do.
func Away(err error) string {
	if unknown, ok := errors.AsType[*UnknownError](err); ok {
		return unknown.Error()
	}
	if blocked, ok := errors.AsType[*blockedError](err); ok {
		return "Producers, relays, workers and this page wait for a lock: " + blocked.who +
			". Wait for it, or end it: pg_terminate_backend(its number)."
	}
	if denied := pgerr.Denied(err); denied != "" {
		return "It may not be read: " + denied + "."
	}
	if what := cmp.Or(pgerr.Unreached(err), pgerr.Refused(err)); what != "" {
		return "This page cannot connect: " + what + "."
	}
	switch {
	case pgerr.Is(err, pgerr.TooManyConnections):
		return "Postgres answers, and has no connection left for this page, nor for relays and workers of its role. " +
			"As a superuser: select usename, application_name, count(*) from pg_stat_activity group by 1, 2 " +
			"order by 3 desc; then end what holds them, or raise the limit."
	case pgerr.Is(err, pgerr.ReadOnlyTransaction), pgerr.Is(err, featureNotSupported):
		return "This server is a standby, or lets nobody write. Connect to the primary; with several hosts in " +
			"the URL add target_session_attrs=read-write."
	case pgerr.Away(err), errors.Is(err, context.DeadlineExceeded):
		return "It does not answer in time. Nothing is known of it at this moment; relays and workers wait for it " +
			"as well. Look whether Postgres runs, and whether this machine reaches it."
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Message
	}
	return err.Error()
}
