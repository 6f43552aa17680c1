package endtoend

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMigrateFalse: with SkipMigrate and without tables, Run fails, creates no table, and names the command to run.
func TestMigrateFalse(t *testing.T) {
	t.Parallel()
	quiet, nobody := slog.New(slog.DiscardHandler), []string{"127.0.0.1:1"}
	box, err := mailbox.New(mailbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = box.Close() })
	smtp, err := email.NewSMTP(email.SMTPConfig{Addr: box.Addr(), TLS: email.TLSNone})
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(t *testing.T, db *pgtest.DB) error{
		"payments": func(t *testing.T, db *pgtest.DB) error {
			return payments.Run(t.Context(), pgtest.Pool(t, db.AdminURL), payments.Config{
				Schema: db.Schema, Listen: "127.0.0.1:0", SkipMigrate: true, Logger: quiet,
			})
		},
		"ledger": func(t *testing.T, db *pgtest.DB) error {
			return ledger.Run(t.Context(), ledger.Config{
				DB: pgtest.Pool(t, db.AdminURL), Schema: db.Schema,
				Brokers: nobody, SkipMigrate: true, Logger: quiet,
			})
		},
		"email": func(t *testing.T, db *pgtest.DB) error {
			base := worker.Config{
				DB: pgtest.Pool(t, db.AdminURL), Schema: db.Schema, Brokers: nobody,
				SkipMigrate: true, Logger: quiet,
			}
			return email.Run(t.Context(), email.Config{Config: base, Provider: smtp})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if err := run(t, db); err == nil || !strings.Contains(err.Error(), "relay migrate") {
				t.Errorf("error %v", err)
			}
			if n := pgtest.One[int](t, db, "select count(*) from pg_class where relnamespace = $1::regnamespace",
				db.Schema); n != 0 {
				t.Errorf("it created %d relations", n)
			}
		})
	}
}
