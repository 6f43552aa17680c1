// Command email sends one receipt for each payment: it commits a row, sends the mail, and records the outcome.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/service"
)

type flags struct {
	worker.Flags
	SMTPAddr        string        `name:"smtp-addr" required:"" placeholder:"HOST:PORT" help:"SMTP server."`
	SMTPTLS         string        `name:"smtp-tls" enum:"mandatory,opportunistic,none" default:"opportunistic" help:"STARTTLS: mandatory, opportunistic or none."`
	SMTPUsername    string        `name:"smtp-username" help:"User to log in as."`
	SMTPPassword    secret.Value  `name:"smtp-password" help:"Password of that user."`
	LookupURL       string        `placeholder:"URL" help:"Service that says whether a mail was accepted: GET URL?message_id=... answers 200 or 404."`
	Settled         time.Duration `default:"10m" help:"How long the provider may work at a mail, and its query lag behind: only then --lookup-url is asked about a mail without an answer."`
	OnUnknown       string        `enum:"hold,resend" default:"hold" help:"What to do without --lookup-url with a mail that may have been accepted: hold leaves it to an operator, resend sends it again with the same Message-ID."`
	From            string        `default:"receipts@effectonce.example" help:"Sender's address."`
	RecipientDomain string        `default:"customers.example" help:"Domain of the recipients' addresses; account ids are the local parts."`
	Senders         int           `default:"4" help:"Mails that are sent concurrently."`
	SendTimeout     time.Duration `default:"20s" help:"Time-out of one attempt."`
	Lease           time.Duration `default:"60s" help:"How long an attempt belongs to its sender; at least twice --send-timeout."`
}

func main() {
	var f flags
	os.Exit(worker.Main(&f, "email", "Sends one receipt for each payment from Kafka.", "127.0.0.1:9189", "EMAIL",
		func(ctx context.Context, log *slog.Logger) error {
			cfg, err := f.config()
			if err != nil {
				return &service.UsageError{Err: err}
			}
			cfg.Logger = log
			return email.Run(ctx, cfg)
		}))
}

func (f flags) config() (email.Config, error) {
	base, err := f.Worker()
	if err != nil {
		return email.Config{}, err
	}
	cfg := email.Config{
		Config: base, From: f.From, RecipientDomain: f.RecipientDomain, Senders: f.Senders, SendTimeout: f.SendTimeout,
		Lease: f.Lease, Settled: f.Settled,
	}
	if f.OnUnknown == "resend" {
		cfg.OnUnknown = email.Resend
	}
	password, err := f.SMTPPassword.Reveal()
	if err != nil {
		return cfg, fmt.Errorf("--smtp-password: %w", err)
	}
	if cfg.Provider, err = email.NewSMTP(email.SMTPConfig{
		Addr: f.SMTPAddr, TLS: f.SMTPTLS, Username: f.SMTPUsername,
		Password: password,
	}); err != nil {
		return cfg, err
	}
	if f.LookupURL != "" {
		cfg.Lookup, err = email.HTTPLookup(f.LookupURL)
	}
	return cfg, err
}
