// Command email sends one receipt for each payment: it commits a row, sends the mail, and records the outcome. Its
// settings are the variables of worker.FromEnv and those below, with EMAIL_ in front.
package main

import (
	"context"
	"os"

	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/examples/worker/figures"
	"github.com/effectonce/effectonce/process"
)

func main() { os.Exit(process.Main(run)) }

func run(ctx context.Context) error {
	env := process.NewEnv("EMAIL_")
	cfg := email.Config{Config: worker.FromEnv(env, "127.0.0.1:9189")}
	smtp := email.SMTPConfig{Password: env.Secret("SMTP_PASSWORD")}
	lookupURL, resend := "", false
	env.Set("SMTP_ADDR", &smtp.Addr)
	env.Set("SMTP_TLS", &smtp.TLS)
	env.Set("SMTP_USERNAME", &smtp.Username)
	env.Set("LOOKUP_URL", &lookupURL) // says whether a mail was accepted: see email.HTTPLookup
	env.Set("RESEND", &resend)        // without LOOKUP_URL: a mail that may have been accepted is sent again
	env.Set("FROM", &cfg.From)
	env.Set("RECIPIENT_DOMAIN", &cfg.RecipientDomain)
	env.Set("SENDERS", &cfg.Senders)
	env.Set("SEND_TIMEOUT", &cfg.SendTimeout)
	env.Set("LEASE", &cfg.Lease)
	env.Set("SETTLED", &cfg.Settled)
	if err := env.Err(); err != nil {
		return err
	}
	defer cfg.DB.Close()
	cfg.Figures = figures.Prometheus
	if resend {
		cfg.OnUnknown = email.Resend
	}
	var err error
	if cfg.Provider, err = email.NewSMTP(smtp); err != nil {
		return err
	}
	if lookupURL != "" {
		if cfg.Lookup, err = email.HTTPLookup(lookupURL); err != nil {
			return err
		}
	}
	return email.Run(ctx, cfg)
}
