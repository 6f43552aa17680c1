// Package pgsession refuses sessions whose settings, which a role, a database or a URL may have set, change what is
// written and read. The server reports these settings by itself, so nothing is asked. A nil connection is that of a
// test.
package pgsession

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
)

// Texts fails if texts would not be what they are in Go: in another encoding the server takes the bytes of UTF-8 for
// other characters, and stores those.
func Texts(conn *pgx.Conn) error {
	if conn == nil {
		return nil
	}
	switch encoding := conn.PgConn().ParameterStatus("client_encoding"); encoding {
	case "", "UTF8", "SQL_ASCII": // the last converts nothing
		return nil
	default:
		return fmt.Errorf("the session's client_encoding is %s, and Go's strings are UTF-8: set it to UTF8 for the "+
			"role and the database, or add client_encoding=UTF8 to the URL", encoding)
	}
}

// Times fails if times would not be read: in the query modes that poolers need they are texts, and pgx knows one form
// of them.
func Times(conn *pgx.Conn) error {
	if conn == nil {
		return nil
	}
	mode := conn.Config().DefaultQueryExecMode
	if mode != pgx.QueryExecModeExec && mode != pgx.QueryExecModeSimpleProtocol {
		return nil
	}
	if style := conn.PgConn().ParameterStatus("DateStyle"); style != "" && !strings.HasPrefix(style, "ISO") {
		return fmt.Errorf("the session's DateStyle is %q, and in the query mode %q times are read in ISO only: set it "+
			"to ISO for the role and the database, or add datestyle=ISO to the URL", style, mode)
	}
	return nil
}

// Advise names the setting behind an error of reading a text in a form that pgx does not know, or of a pooler that
// gives statements to other sessions than the one that has prepared them, and returns any other error as it is.
// bytea_output is none of the settings that the server reports.
func Advise(err error) error {
	if err == nil {
		return nil
	}
	const exec = "default_query_exec_mode=exec"
	// Another session's prepared statements: unknown ones, or one that it has already.
	if pgerr.Is(err, "26000") || pgerr.Is(err, "42P05") {
		if strings.Contains(err.Error(), exec) {
			return err
		}
		return fmt.Errorf("a pooler in transaction mode is in between, and does not keep prepared statements: add "+
			exec+" to the URL of the database (docs/platforms/postgres.md): %w", err)
	}
	switch text := err.Error(); {
	case strings.Contains(text, "bytea_output"), strings.Contains(text, "DateStyle"):
	case strings.Contains(text, "invalid hex format"):
		return fmt.Errorf("%w (the session's bytea_output is not hex: set it for the role and the database)", err)
	case strings.Contains(text, "invalid PostgreSQL date/time value"):
		return fmt.Errorf("%w (the session's DateStyle is not ISO: set it for the role and the database)", err)
	}
	return err
}
