package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// The demo starts itself again for each process that it may kill. A child's role and settings, which hold a password,
// are in its environment: every user of a machine sees command lines.
const (
	envRole     = "EFFECTONCE_DEMO_ROLE"
	envSettings = "EFFECTONCE_DEMO_SETTINGS"
)

// Roles of a child.
const (
	roleRelay    = "relay"
	roleLedger   = "ledger"
	roleEmail    = "email"
	rolePayments = "payments"
)

// Leases are short, because the demo waits for those of killed processes to expire. Kafka refuses sessions below 6 s.
const (
	relayLease  = 3 * time.Second
	session     = 6 * time.Second
	mailTimeout = 2 * time.Second
	mailLease   = 2 * mailTimeout
	mailBackoff = 200 * time.Millisecond
	stopTimeout = 15 * time.Second
	// Recovery takes over the payment of a killed process when its lease has expired and none of its requests to the
	// bank can still be in flight.
	cardTimeout  = 1500 * time.Millisecond
	cardLease    = 2 * time.Second
	recoverEvery = 200 * time.Millisecond
)

// settings are those of a child.
type settings struct {
	DatabaseURL, Schema  string
	Brokers              []string
	Topic                string
	LedgerGroup          string
	EmailGroup           string
	SMTPAddr, MailLookup string
	CardAPI, Bank        string // address of the API for payments with a card, URL of its card provider
	Name                 string // of the child
	Dir                  string // of the marks
}

func childMain(role string) int {
	var p settings
	if err := json.Unmarshal([]byte(os.Getenv(envSettings)), &p); err != nil {
		fmt.Fprintln(os.Stderr, "demo: reading the child's settings:", err)
		return process.CodeUsage
	}
	return process.Main(func(ctx context.Context) error {
		// The demo holds the other end of standard input. It closes when the demo ends, also where the kernel does not
		// kill orphans.
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		db, err := pgxpool.New(ctx, p.DatabaseURL)
		if err != nil {
			return err
		}
		defer db.Close()
		switch role {
		case roleRelay:
			return runRelay(ctx, db, p, log)
		case roleLedger:
			return p.runLedger(ctx, db, log)
		case roleEmail:
			return runEmail(ctx, db, p, log)
		case rolePayments:
			return runPayments(ctx, db, p, log)
		}
		return fmt.Errorf("no such role: %q", role)
	})
}

func (p settings) worker(db *pgxpool.Pool, group string, log *slog.Logger) worker.Config {
	return worker.Config{
		DB: db, Schema: p.Schema, Brokers: p.Brokers, Topic: p.Topic, Group: group,
		SkipMigrate: true, Logger: log,
		Inbox:    inbox.Config{Program: group}, // each child is a program, although they share an executable
		Consumer: consumer.Config{SessionTimeout: session, RebalanceTimeout: session, HeartbeatInterval: session / 6},
	}
}

// The marks are files in the demo's folder, which the page makes.
const (
	markFrozen = "frozen"      // the frozen account cannot be booked
	markKill   = "kill-ledger" // the ledger's process is killed after its next effect, before the COMMIT
)

// frozen is an account whose bookings fail while its mark is there.
const frozen = "frozen-account"

// runLedger runs the ledger with an effect that the page can make fail, and die.
func (p settings) runLedger(ctx context.Context, db *pgxpool.Pool, log *slog.Logger) error {
	book := ledger.Effect(p.Schema)
	effect := func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		for _, e := range events {
			if e.Key == frozen && p.marked(markFrozen) {
				return inbox.Of(e, outcome.Terminal("account_frozen", errors.New("the account is frozen")))
			}
		}
		err := book(ctx, tx, events)
		if err == nil && os.Remove(filepath.Join(p.Dir, markKill)) == nil {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			<-ctx.Done() // the kill has been sent
		}
		return err
	}
	return worker.Run(ctx, p.worker(db, p.LedgerGroup, log), worker.Worker{
		Name: ledger.Name, Tables: ledger.Tables(),
		Handler: func(in *inbox.Inbox) inbox.Handler { return in.Batch(effect) },
	})
}

func (p settings) marked(mark string) bool {
	_, err := os.Stat(filepath.Join(p.Dir, mark))
	return err == nil
}

// runPayments accepts payments with a card. The demo's own process accepts those without one.
func runPayments(ctx context.Context, db *pgxpool.Pool, p settings, log *slog.Logger) error {
	bank, err := payments.HTTPProvider(p.Bank, cardTimeout)
	if err != nil {
		return err
	}
	return payments.Run(ctx, db, payments.Config{
		Schema: p.Schema, Listen: p.CardAPI, Topic: p.Topic, SkipMigrate: true,
		Logger: log, Cards: bank, Guard: guard.Config{Lease: cardLease, RecoverAfter: 2 * cardTimeout},
		Recovery: recovery.Config{Every: recoverEvery, Grace: 2 * cardTimeout, Backoff: recoverEvery, SweepEvery: -1},
	})
}

func runEmail(ctx context.Context, db *pgxpool.Pool, p settings, log *slog.Logger) error {
	smtp, err := email.NewSMTP(email.SMTPConfig{Addr: p.SMTPAddr, TLS: email.TLSNone, Timeout: mailTimeout})
	if err != nil {
		return err
	}
	lookup, err := email.HTTPLookup(p.MailLookup)
	if err != nil {
		return err
	}
	return email.Run(ctx, email.Config{
		Config: p.worker(db, p.EmailGroup, log), Provider: smtp, Lookup: lookup,
		SendTimeout: mailTimeout, Lease: mailLease, Backoff: mailBackoff, Settled: mailTimeout,
	})
}

func runRelay(ctx context.Context, db *pgxpool.Pool, p settings, log *slog.Logger) error {
	box, err := relay.Open(db, p.Schema)
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(p.Brokers, publisher.Config{Pin: box.Pin, Logger: log})
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
