package pgerr_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
)

func pg(code, severity string) error {
	return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code, Severity: "FEHLER", SeverityUnlocalized: severity})
}

// TestDenied: what a role may not read is named with the grant, also where the server does not speak English.
func TestDenied(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"permission denied for table outbox_held": "; grant select on table outbox_held to this role",
		"permission denied for schema shop":       "; grant usage on schema shop to this role",
		"permission denied for function f":        "; grant execute on function f to this role",
		"keine Berechtigung für Tabelle t":        "; grant to this role what `relay migrate --roles --print` has",
	} {
		err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: pgerr.InsufficientPrivilege, Message: message})
		if got := pgerr.Denied(err); got != message+want {
			t.Errorf("%q", got)
		}
	}
	if got := pgerr.Denied(pg("42P01", "ERROR")) + pgerr.Denied(nil); got != "" {
		t.Errorf("%q", got)
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	_, refused := pgx.Connect(t.Context(), "postgres://postgres@127.0.0.1:1/x?sslmode=disable")
	if refused == nil {
		t.Fatal("port 1 answers")
	}
	for name, c := range map[string]struct {
		err                  error
		retry, away, unknown bool
	}{
		"nil":                     {nil, false, false, false},
		"serialization failure":   {pg("40001", "ERROR"), true, false, false},
		"deadlock":                {pg("40P01", "ERROR"), true, false, false},
		"lock timeout":            {pg("55P03", "ERROR"), true, false, false},
		"completion unknown":      {pg("40003", "ERROR"), false, false, true},
		"connection failure":      {pg("08006", "FATAL"), false, true, true},
		"too many connections":    {pg("53300", "FATAL"), false, true, true},
		"disk full":               {pg("53100", "ERROR"), false, true, false},
		"admin shutdown":          {pg("57P01", "FATAL"), false, true, true},
		"starting up":             {pg("57P03", "FATAL"), false, true, true},
		"became a standby":        {pg("25006", "ERROR"), false, true, false},
		"statement timeout":       {pg("57014", "ERROR"), false, false, false},
		"idle in transaction":     {pg("25P03", "FATAL"), false, false, true},
		"unique violation":        {pg("23505", "ERROR"), false, false, false},
		"old server, no severity": {&pgconn.PgError{Code: "23505", Severity: "ERROR"}, false, false, false},
		"answered ROLLBACK":       {pgx.ErrTxCommitRollback, false, false, false},
		"cannot connect":          {refused, false, true, true},
		"conn closed":             {fmt.Errorf("x: %w", pgconn.ErrConnClosed), false, true, true},
		"unexpected EOF":          {io.ErrUnexpectedEOF, false, true, true},
		"EOF":                     {io.EOF, false, true, true},
		"net closed":              {net.ErrClosed, false, true, true},
		"reset":                   {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false, true, true},
		"cancelled":               {context.Canceled, false, false, true},
		"deadline":                {context.DeadlineExceeded, false, false, true},
		"something else":          {errors.New("x"), false, false, true},
	} {
		if got := pgerr.Retry(c.err); got != c.retry {
			t.Errorf("%s: Retry = %v", name, got)
		}
		if got := pgerr.Away(c.err); got != c.away {
			t.Errorf("%s: Away = %v", name, got)
		}
		if got := pgerr.CommitUnknown(c.err); got != c.unknown {
			t.Errorf("%s: CommitUnknown = %v", name, got)
		}
	}
}

func TestCode(t *testing.T) {
	t.Parallel()
	if got := pgerr.Code(pg("23505", "ERROR")); got != pgerr.UniqueViolation {
		t.Errorf("Code = %q", got)
	}
	if pgerr.Code(io.EOF) != "" || pgerr.Code(nil) != "" || pgerr.Is(io.EOF, pgerr.UniqueViolation) {
		t.Error("an error without SQLSTATE has a code")
	}
}
