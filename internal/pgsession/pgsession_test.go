package pgsession_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestSettingsAreNamed: what changes texts is refused by its name, and nothing else is.
func TestSettingsAreNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for setting, c := range map[string]struct {
		value        string
		texts, times bool // refused
		advised      string
	}{
		"client_encoding":  {"LATIN1", true, false, ""},
		"CLIENT_ENCODING":  {"SQL_ASCII", false, false, ""},
		"datestyle":        {"German", false, true, "select now()"},
		"DateStyle":        {"ISO, DMY", false, false, ""},
		"bytea_output":     {"escape", false, false, `select '\x00'::bytea`},
		"application_name": {"x", false, false, ""},
	} {
		cfg := db.Pool.Config().ConnConfig
		cfg.RuntimeParams[setting] = c.value
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
			cfg.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			named := func(err error) bool {
				return err != nil && strings.Contains(strings.ToLower(err.Error()), strings.ToLower(setting))
			}
			asText := mode == pgx.QueryExecModeExec
			if err := pgsession.Texts(conn); named(err) != c.texts || (err != nil) != c.texts {
				t.Errorf("%s=%s, %s: texts: %v", setting, c.value, mode, err)
			}
			if err := pgsession.Times(conn); named(err) != (c.times && asText) || (err != nil) != (c.times && asText) {
				t.Errorf("%s=%s, %s: times: %v", setting, c.value, mode, err)
			}
			if c.advised != "" {
				rows, _ := conn.Query(t.Context(), c.advised)
				_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v any, err error) {
					if setting == "bytea_output" {
						var b []byte
						return b, row.Scan(&b)
					}
					return pgx.RowTo[any](row)
				})
				if err = pgsession.Advise(err); named(err) != asText {
					t.Errorf("%s=%s, %s: %v", setting, c.value, mode, err)
				}
			}
			_ = conn.Close(context.WithoutCancel(t.Context()))
		}
	}
	for _, code := range []string{"26000", "42P05"} {
		err := pgsession.Advise(&pgconn.PgError{Code: code})
		if !strings.Contains(err.Error(), "default_query_exec_mode=exec") ||
			pgsession.Advise(err).Error() != err.Error() {
			t.Errorf("%s: %v", code, err)
		}
	}
	if pgsession.Texts(nil) != nil || pgsession.Times(nil) != nil || pgsession.Advise(nil) != nil {
		t.Error("nothing is refused")
	}
}
