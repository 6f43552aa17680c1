package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/devstack"
	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/cards"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/examples/worker"
	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/process"
)

// stack holds the servers, the tables, and the parts that run in this process.
type stack struct {
	dir      string // of data and logs
	settings settings
	keep     bool // keep schema and topic on servers that the flags name
	db       *pgxpool.Pool
	prefix   string
	topic    *topic
	kafka    *devstack.Kafka // nil: another one is used
	box      *mailbox.Mailbox
	bank     *cards.Provider
	api      string

	cleanups []func() // close runs them in reverse
	failed   chan error
}

// openStack starts the servers that the flags do not name, and creates the tables and the topic. faults decides what
// becomes of mails and charges. After an error nothing is left running.
func openStack(ctx context.Context, f flags, printf func(string, ...any), faults *faults) (_ *stack, err error) {
	s := &stack{keep: f.Keep, failed: make(chan error, 1)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	dir, remove, err := child.TempDir("demo")
	if err != nil {
		return nil, err
	}
	s.dir = dir
	s.onClose(remove)
	// On servers that the flags name, schema, topic and groups get a random suffix.
	suffix := strings.ToLower(rand.Text()[:8])
	s.settings = settings{
		Dir:         dir,
		DatabaseURL: f.DatabaseURL, Schema: "public", Brokers: f.KafkaBrokers, Topic: f.Topic,
		LedgerGroup: ledger.Name, EmailGroup: email.Name,
	}
	if err := s.openKafka(ctx, suffix); err != nil {
		return nil, err
	}
	if err := s.openDatabase(ctx, suffix, printf); err != nil {
		return nil, err
	}
	return s, s.openServers(ctx, faults)
}

func (s *stack) onClose(do func()) { s.cleanups = append(s.cleanups, do) }

func (s *stack) close() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
	s.cleanups = nil
}

func (s *stack) openKafka(ctx context.Context, suffix string) (err error) {
	own := len(s.settings.Brokers) == 0
	var settings map[string]string
	if own {
		settings = map[string]string{"min.insync.replicas": "2"}
		kafka, err := devstack.StartKafka(devstack.Config{})
		if err != nil {
			return err
		}
		s.kafka = kafka
		s.onClose(kafka.Close)
		s.settings.Brokers = kafka.Brokers()
		suffix = ""
	}
	if suffix != "" {
		s.settings.LedgerGroup += "-demo-" + suffix
		s.settings.EmailGroup += "-demo-" + suffix
	}
	if s.settings.Topic == "" {
		s.settings.Topic = strings.TrimSuffix("payments-demo-"+suffix, "-demo-")
	}
	if s.topic, err = openTopic(ctx, s.settings.Brokers, s.settings.Topic, settings); err != nil {
		return err
	}
	s.onClose(func() {
		defer s.topic.client.Close()
		if own || s.keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		s.warnCleanup(s.topic.remove(ctx, s.settings.LedgerGroup, s.settings.EmailGroup))
	})
	return nil
}

func (s *stack) openDatabase(ctx context.Context, suffix string, printf func(string, ...any)) (err error) {
	own := s.settings.DatabaseURL == ""
	if own {
		server, err := devstack.StartPostgres(ctx, devstack.Config{Dir: s.dir, Keep: true},
			func(what string) { printf("%s", what) })
		if err != nil {
			return err
		}
		s.onClose(server.Stop)
		s.settings.DatabaseURL = server.URL()
	} else {
		s.settings.Schema = "effectonce_demo_" + suffix
	}
	if s.prefix, err = pgschema.Prefix(s.settings.Schema); err != nil {
		return err
	}
	cfg, err := pgconf.PoolConfig("--database-url", s.settings.DatabaseURL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 8 // the payments API uses it too
	if s.db, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	s.onClose(s.db.Close)
	if err := s.db.Ping(ctx); err != nil {
		return fmt.Errorf("--database-url: %w", err)
	}
	s.onClose(func() {
		if own || s.keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := s.db.Exec(ctx, strings.ReplaceAll(queryDrop, pgschema.Placeholder,
			pgx.Identifier{s.settings.Schema}.Sanitize()))
		s.warnCleanup(err)
	})
	for _, tables := range []worker.Tables{payments.Tables(), ledger.Tables(), email.Tables()} {
		if err := tables.Prepare(s.db, s.settings.Schema, false)(ctx); err != nil {
			return fmt.Errorf("creating the tables: %w", err)
		}
	}
	return nil
}

// openServers starts the parts in this process: the API for payments without a card, the bank, the mail server and its
// lookup.
func (s *stack) openServers(ctx context.Context, faults *faults) (err error) {
	// The bank ignores idempotency keys, so a caller must ask it for an earlier charge before it charges again.
	s.bank = cards.New(cards.Config{IgnoreKeys: true, Booked: faults.charged})
	if s.box, err = mailbox.New(mailbox.Config{Mail: faults.mail}); err != nil {
		return err
	}
	s.settings.SMTPAddr = s.box.Addr()
	var open []net.Listener
	defer func() {
		if err != nil {
			err = errors.Join(err, s.box.Close())
			for _, l := range open {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	for range 4 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		open = append(open, l)
	}
	lookup, api, bank := open[0], open[1], open[2]
	s.settings.MailLookup, s.settings.Bank = "http://"+lookup.Addr().String()+"/", "http://"+bank.Addr().String()
	s.api = "http://" + api.Addr().String() + "/payments"
	// The child that is killed and its successor listen on the same port.
	s.settings.CardAPI = open[3].Addr().String()
	if err := open[3].Close(); err != nil {
		return err
	}
	open = open[:3]
	log, err := os.Create(filepath.Join(s.dir, "payments-inside.log"))
	if err != nil {
		return err
	}
	// The servers outlive ctx: the children need them until they have stopped.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	for name, run := range map[string]func() error{
		"the mail server": func() error { return s.box.Run(ctx) },
		"the mail lookup": func() error { return process.Serve(ctx, lookup, s.box.Handler()) },
		"the bank":        func() error { return process.Serve(ctx, bank, s.bank.Handler()) },
		"the payments API": func() error {
			return payments.Run(ctx, s.db, payments.Config{
				Schema: s.settings.Schema, Listener: api,
				Topic: s.settings.Topic, SkipMigrate: true, Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
		},
	} {
		wg.Go(func() {
			if err := run(); err != nil {
				select {
				case s.failed <- fmt.Errorf("%s: %w", name, err):
				default:
				}
			}
		})
	}
	s.onClose(func() {
		cancel()
		wg.Wait()
		_ = log.Close()
	})
	return nil
}

func (s *stack) warnCleanup(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: cleaning up (schema %s, topic %s): %v\n", s.settings.Schema,
			s.settings.Topic, err)
	}
}
