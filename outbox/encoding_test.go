package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// TestAnotherEncodingIsRefused: where the session's encoding cannot be seen from the client, the statement refuses it:
// the server would store other texts.
func TestAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	cfg := db.Pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["client_encoding"] = "LATIN1"
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	std := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = std.Close() })
	one := event.Event{Topic: "t", Key: "ключ", Type: "T", Payload: []byte("x")}
	later := one
	later.NotBefore = time.Now().Add(time.Hour)
	for name, events := range map[string][]event.Event{
		"one": {one}, "many": {one, one}, "scheduled": {later}, "many scheduled": {later, later},
	} {
		for door, put := range map[string]func() error{
			"Append": func() error {
				return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					return outbox.Append(t.Context(), tx, events...)
				})
			},
			"Queue": func() error {
				return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					var b pgx.Batch
					if err := outbox.Queue(t.Context(), &b, events...); err != nil {
						return err
					}
					return tx.SendBatch(t.Context(), &b).Close()
				})
			},
			"AppendSQL": func() error {
				return inSQL(t, std, func(tx *sql.Tx) error { return outbox.AppendSQL(t.Context(), tx, events...) })
			},
		} {
			if err := put(); err == nil || !strings.Contains(err.Error(), "LATIN1") ||
				!strings.Contains(err.Error(), "set it to UTF8") {
				t.Errorf("%s by %s: %v", name, door, err)
			}
		}
	}
	if n := pgtest.One[int](t, db, `select (select count(*) from outbox_event) +
		(select count(*) from outbox_scheduled)`); n != 0 {
		t.Errorf("%d events were stored", n)
	}
}

func inSQL(t *testing.T, db *sql.DB, do func(tx *sql.Tx) error) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
