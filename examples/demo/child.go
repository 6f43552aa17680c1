package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// The demo runs itself for each process that it may kill. What a child is and where it works stands in its environment,
// for every user of a machine sees command lines.
const (
	envRole   = "EFFECTONCE_DEMO_ROLE"
	envPlaces = "EFFECTONCE_DEMO_PLACES"
)

// What a child can be.
const (
	roleRelay    = "relay"
	roleLedger   = "ledger"
	roleEmail    = "email"
	rolePayments = "payments"
)

// Short enough that a demo can wait for what a killed process still holds. Kafka itself refuses sessions below 6 s.
const (
	relayLease    = 3 * time.Second
	session       = 6 * time.Second
	mailTimeout   = 2 * time.Second
	mailLease     = 2 * mailTimeout
	mailBackoff   = 200 * time.Millisecond
	childPatience = 15 * time.Second
	// A payment whose process was killed is looked at when its lease has ended, and no request of its can be on the way
	// to the bank any more.
	cardTimeout  = 700 * time.Millisecond
	cardLease    = time.Second
	recoverEvery = 200 * time.Millisecond
)

// places is what a child needs to know.
type places struct {
	DatabaseURL, Schema  string
	Brokers              []string
	Topic                string
	LedgerGroup          string
	EmailGroup           string
	SMTPAddr, MailLookup string
	CardAPI, Bank        string // where payments with a card are accepted, and whom that asks
	Name                 string // of the child
}

func childMain(role string) int {
	var p places
	if err := json.Unmarshal([]byte(os.Getenv(envPlaces)), &p); err != nil {
		fmt.Fprintln(os.Stderr, "demo: a child without its settings:", err)
		return service.CodeUsage
	}
	return service.Main(func(ctx context.Context) error {
		// The other end of standard input is the demo's, and closes with it: also where the kernel kills no orphans.
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		switch role {
		case roleRelay:
			return runRelay(ctx, p, log)
		case roleLedger:
			return ledger.Run(ctx, p.worker(p.LedgerGroup, log))
		case roleEmail:
			return runEmail(ctx, p, log)
		case rolePayments:
			return runPayments(ctx, p, log)
		}
		return fmt.Errorf("no such role: %q", role)
	})
}

func (p places) worker(group string, log *slog.Logger) worker.Config {
	return worker.Config{
		DatabaseURL: secret.Of(p.DatabaseURL), Schema: p.Schema, Brokers: p.Brokers, Topic: p.Topic, Group: group,
		SkipMigrate: true, Logger: log,
		Consumer: consumer.Config{SessionTimeout: session, RebalanceTimeout: session, HeartbeatInterval: session / 6},
	}
}

// runPayments accepts payments with a card. Those without one are accepted inside of the demo.
func runPayments(ctx context.Context, p places, log *slog.Logger) error {
	bank, err := payments.HTTPProvider(p.Bank, cardTimeout)
	if err != nil {
		return err
	}
	return payments.Run(ctx, payments.Config{
		DatabaseURL: secret.Of(p.DatabaseURL), Schema: p.Schema, Listen: p.CardAPI, Topic: p.Topic, SkipMigrate: true,
		Logger: log, Cards: bank, Guard: guard.Config{Lease: cardLease, RecoverAfter: 2 * cardTimeout},
		Recovery: recovery.Config{Every: recoverEvery, Grace: 2 * cardTimeout, Backoff: recoverEvery, SweepEvery: -1},
	})
}

func runEmail(ctx context.Context, p places, log *slog.Logger) error {
	smtp, err := email.NewSMTP(email.SMTPConfig{Addr: p.SMTPAddr, TLS: email.TLSNone, Timeout: mailTimeout})
	if err != nil {
		return err
	}
	lookup, err := email.HTTPLookup(p.MailLookup)
	if err != nil {
		return err
	}
	return email.Run(ctx, email.Config{
		Config: p.worker(p.EmailGroup, log), Provider: smtp, Lookup: lookup,
		SendTimeout: mailTimeout, Lease: mailLease, Backoff: mailBackoff,
	})
}

func runRelay(ctx context.Context, p places, log *slog.Logger) error {
	db, err := pgxpool.New(ctx, p.DatabaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	pin, err := relay.Pins(db, p.Schema)
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(p.Brokers, publisher.Config{Pin: pin, Logger: log})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	r, err := relay.New(db, kafka, relay.Config{Schema: p.Schema, Name: p.Name, Lease: relayLease, Logger: log})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
