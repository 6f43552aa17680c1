package endtoend

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/secret"
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
	for name, run := range map[string]func(ctx context.Context, db *pgtest.DB) error{
		"payments": func(ctx context.Context, db *pgtest.DB) error {
			return payments.Run(ctx, payments.Config{
				DatabaseURL: secret.Of(db.AdminURL), Schema: db.Schema,
				Listen: "127.0.0.1:0", SkipMigrate: true, Logger: quiet,
			})
		},
		"ledger": func(ctx context.Context, db *pgtest.DB) error {
			return ledger.Run(ctx, ledger.Config{
				DatabaseURL: secret.Of(db.AdminURL), Schema: db.Schema,
				Brokers: nobody, SkipMigrate: true, Logger: quiet,
			})
		},
		"email": func(ctx context.Context, db *pgtest.DB) error {
			base := worker.Config{
				DatabaseURL: secret.Of(db.AdminURL), Schema: db.Schema, Brokers: nobody,
				SkipMigrate: true, Logger: quiet,
			}
			return email.Run(ctx, email.Config{Config: base, Provider: smtp})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if err := run(t.Context(), db); err == nil || !strings.Contains(err.Error(), "relay migrate") {
				t.Errorf("error %v", err)
			}
			if n := pgtest.One[int](t, db, "select count(*) from pg_class where relnamespace = $1::regnamespace",
				db.Schema); n != 0 {
				t.Errorf("it created %d relations", n)
			}
		})
	}
}

// TestMigrateFlag: --migrate is on by default and can be switched off.
func TestMigrateFlag(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]bool{
		"": true, "--migrate": true, "--migrate=false": false,
		"--no-migrate": false,
	} {
		var f worker.Flags
		parser, err := kong.New(&f, kong.Vars{"listen": "off"})
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"--database-url", "postgres://u@h/d", "--kafka-brokers", "h:1"}
		if arg != "" {
			args = append(args, arg)
		}
		if _, err := parser.Parse(args); err != nil || f.Migrate != want {
			t.Errorf("%q: migrate %v, %v", arg, f.Migrate, err)
		}
	}
}
