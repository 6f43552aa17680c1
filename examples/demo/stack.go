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

	"github.com/effectonce/effectonce/examples/email/email"
	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/internal/devstack"
	"github.com/effectonce/effectonce/examples/internal/worker"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/examples/payments/cards"
	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/internal/testenv/child"
)

// stack is everything that the demo stands on: servers, tables, and the parts that run inside this process.
type stack struct {
	dir    string // of data and logs
	places places
	keep   bool // leave what real servers hold
	db     *pgxpool.Pool
	prefix string
	topic  *topic
	box    *mailbox.Mailbox
	bank   *cards.Provider
	api    string

	undo []func() // in the order of making
	lost chan error
}

// openStack starts what the flags do not name, and makes the tables and the topic. Of mails and charges the faults
// decide. On an error nothing is left.
func openStack(ctx context.Context, f flags, say func(string, ...any), broken *faults) (_ *stack, err error) {
	s := &stack{keep: f.Keep, lost: make(chan error, 1)}
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
	// What is somebody's own server may hold other things: names of our own there.
	suffix := strings.ToLower(rand.Text()[:8])
	s.places = places{
		DatabaseURL: f.DatabaseURL, Schema: "public", Brokers: f.KafkaBrokers, Topic: f.Topic,
		LedgerGroup: ledger.Name, EmailGroup: email.Name,
	}
	if err := s.openKafka(ctx, suffix); err != nil {
		return nil, err
	}
	if err := s.openDatabase(ctx, suffix, say); err != nil {
		return nil, err
	}
	return s, s.openServers(ctx, broken)
}

func (s *stack) onClose(do func()) { s.undo = append(s.undo, do) }

// close ends and removes everything, the last first.
func (s *stack) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

func (s *stack) openKafka(ctx context.Context, suffix string) (err error) {
	own := len(s.places.Brokers) == 0
	if own {
		kafka, err := devstack.StartKafka()
		if err != nil {
			return err
		}
		s.onClose(kafka.Close)
		s.places.Brokers = kafka.Brokers()
		suffix = ""
	}
	if suffix != "" {
		s.places.LedgerGroup += "-demo-" + suffix
		s.places.EmailGroup += "-demo-" + suffix
	}
	if s.places.Topic == "" {
		s.places.Topic = strings.TrimSuffix("payments-demo-"+suffix, "-demo-")
	}
	if s.topic, err = openTopic(ctx, s.places.Brokers, s.places.Topic); err != nil {
		return err
	}
	s.onClose(func() {
		defer s.topic.client.Close()
		if own || s.keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		s.complain(s.topic.remove(ctx, s.places.LedgerGroup, s.places.EmailGroup))
	})
	return nil
}

func (s *stack) openDatabase(ctx context.Context, suffix string, say func(string, ...any)) (err error) {
	own := s.places.DatabaseURL == ""
	if own {
		server, err := devstack.StartPostgres(ctx, s.dir, func(what string) { say("%s", what) })
		if err != nil {
			return err
		}
		s.onClose(server.Stop)
		s.places.DatabaseURL = server.URL()
	} else {
		s.places.Schema = "effectonce_demo_" + suffix
	}
	if s.prefix, err = pgschema.Prefix(s.places.Schema); err != nil {
		return err
	}
	cfg, err := service.PoolConfig("--database-url", s.places.DatabaseURL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 4
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
			pgx.Identifier{s.places.Schema}.Sanitize()))
		s.complain(err)
	})
	for _, tables := range []worker.Tables{payments.Tables(), ledger.Tables(), email.Tables()} {
		pool, err := worker.Open(ctx, service.Database{URL: secret.Of(s.places.DatabaseURL)}, s.places.Schema, tables,
			false, slog.New(slog.DiscardHandler))
		if err != nil {
			return fmt.Errorf("making the tables: %w", err)
		}
		pool.Close()
	}
	return nil
}

// openServers starts what runs inside this process: the payments API for payments without a card, a bank, and a mail
// server that can be asked what it took.
func (s *stack) openServers(ctx context.Context, broken *faults) (err error) {
	// It charges again whenever it is asked again: only what asks it first is safe.
	s.bank = cards.New(cards.Config{IgnoreKeys: true, Booked: broken.charged})
	if s.box, err = mailbox.New(mailbox.Config{Mail: broken.mail}); err != nil {
		return err
	}
	s.places.SMTPAddr = s.box.Addr()
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
	s.places.MailLookup, s.places.Bank = "http://"+lookup.Addr().String()+"/", "http://"+bank.Addr().String()
	s.api = "http://" + api.Addr().String() + "/payments"
	// A child listens there, and its successor.
	s.places.CardAPI = open[3].Addr().String()
	if err := open[3].Close(); err != nil {
		return err
	}
	open = open[:3]
	log, err := os.Create(filepath.Join(s.dir, "payments-inside.log"))
	if err != nil {
		return err
	}
	// They outlive the end of ctx: the children finish what they are doing, and talk to them.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	for name, run := range map[string]func() error{
		"the mail server": func() error { return s.box.Run(ctx) },
		"the mail lookup": func() error { return service.ServeOn(ctx, lookup, s.box.Handler()) },
		"the bank":        func() error { return service.ServeOn(ctx, bank, s.bank.Handler()) },
		"the payments API": func() error {
			return payments.Run(ctx, payments.Config{
				DatabaseURL: secret.Of(s.places.DatabaseURL), Schema: s.places.Schema, Listener: api,
				Topic: s.places.Topic, SkipMigrate: true, Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
		},
	} {
		wg.Go(func() {
			if err := run(); err != nil {
				select {
				case s.lost <- fmt.Errorf("%s: %w", name, err):
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

// complain tells what cleaning up left behind.
func (s *stack) complain(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: cleaning up (schema %s, topic %s): %v\n", s.places.Schema, s.places.Topic, err)
	}
}
