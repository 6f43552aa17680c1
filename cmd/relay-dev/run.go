package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/cmd/devstack"
	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui"
)

// What is preferred, so that the settings of other services stay valid from run to run.
const (
	pagesAddress = "127.0.0.1:9188"
	postgresPort = 55432
	kafkaPort    = 59092
)

// archiveDays is for how long published events can be looked at and replayed.
const archiveDays = 2

// stack holds the servers and the relay.
type stack struct {
	dir      string
	out      *lines
	log      *slog.Logger // of what goes wrong, among the lines
	url      string       // of Postgres
	config   string       // file with the settings of relay
	db       *pgxpool.Pool
	brokers  []string
	listener net.Listener // of the pages

	cleanups []func() // close runs them in reverse
}

// lines writes whole lines of concurrent writers.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func run(ctx context.Context, f flags, stdout io.Writer) error {
	s, err := open(ctx, f, &lines{w: stdout})
	if err != nil {
		return err
	}
	defer s.close()
	streamed, err := newStream(s.brokers, s.out)
	if err != nil {
		return err
	}
	defer streamed.close()
	topics, err := newTopics(s.brokers)
	if err != nil {
		return err
	}
	defer topics.close()
	for _, name := range f.Topics {
		if err := topics.create(ctx, name, 6, nil); err != nil {
			return err
		}
	}
	pages, err := s.pages()
	if err != nil {
		return err
	}
	s.welcome()
	if f.Open {
		devstack.OpenBrowser(stdout, s.page())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.relay(ctx) })
	g.Go(func() error { return pages.Run(ctx) })
	g.Go(func() error { return process.Serve(ctx, s.listener, pages) })
	g.Go(func() error { return streamed.run(ctx) })
	if f.Seed {
		g.Go(func() error { return s.shop(ctx, topics) })
	}
	err = g.Wait()
	fmt.Fprintln(s.out, "stopping; the data stays in", s.dir)
	return err
}

// open starts the servers and creates the tables. On an error it stops what it has started.
func open(ctx context.Context, f flags, out *lines) (_ *stack, err error) {
	s := &stack{out: out, log: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	dir, unlock, err := devstack.Folder(f.Dir)
	if err != nil {
		return nil, service.Usage("--dir: %w", err)
	}
	s.dir = dir
	s.onClose(unlock)
	if s.listener, err = net.Listen("tcp", cmp.Or(f.Listen, pagesAddress)); err != nil && f.Listen == "" {
		s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, service.Usage("--listen=%s: %w: name another port, or leave --listen out, to get a free one",
			f.Listen, err)
	}
	s.onClose(func() { _ = s.listener.Close() })
	kafka, err := devstack.StartKafka(devstack.Config{Dir: dir, Keep: true, Port: kafkaPort})
	if err != nil {
		return nil, err
	}
	s.onClose(kafka.Close)
	s.brokers = kafka.Brokers()
	postgres, err := devstack.StartPostgres(ctx, devstack.Config{Dir: dir, Keep: true, Port: postgresPort},
		func(what string) { fmt.Fprintln(out, what) })
	if err != nil {
		return nil, err
	}
	s.onClose(postgres.Stop)
	s.url = postgres.URL()
	s.config = filepath.Join(dir, "relay.yaml")
	settings := fmt.Sprintf("database-url: %q\nkafka-brokers: %q\n", s.url, strings.Join(s.brokers, ","))
	if err := os.WriteFile(s.config, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return nil, errors.New("the URL of the server that was started cannot be read")
	}
	cfg.MaxConns = 12
	if s.db, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	s.onClose(s.db.Close)
	if err := migrations.Up(ctx, cfg.ConnConfig, migrations.Options{}); err != nil {
		return nil, fmt.Errorf("making the tables: %w", err)
	}
	return s, nil
}

func (s *stack) onClose(do func()) { s.cleanups = append(s.cleanups, do) }

func (s *stack) close() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
	s.cleanups = nil
}

// relay publishes until ctx ends.
func (s *stack) relay(ctx context.Context) error {
	box, err := relay.Open(s.db, "")
	if err != nil {
		return err
	}
	kafka, err := publisher.NewKafka(s.brokers, publisher.Config{Pin: box.Pin, Logger: s.log})
	if err != nil {
		return err
	}
	defer func() { _ = kafka.Close() }()
	r, err := relay.New(s.db, kafka, relay.Config{
		Name: "relay-dev", Logger: s.log, ArchiveDays: archiveDays, Lease: 3 * time.Second,
		DrainTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	if err := r.Run(ctx); !errors.Is(err, relay.ErrNotDrained) {
		return err
	}
	return nil // the next start sends it again
}

// pages returns the pages of the outbox, the inbox and the keys.
func (s *stack) pages() (*ui.Handler, error) {
	name := "developer"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	transport := &kafka.Transport{}
	s.onClose(transport.CloseIdleConnections)
	return ui.New([]ui.Database{{Name: "dev", Pool: s.db, Flags: []string{"--config=" + s.config}}}, ui.Config{
		Authorize: ui.Localhost(name),
		Kafka:     &kafka.Client{Addr: kafka.TCP(s.brokers...), Timeout: 10 * time.Second, Transport: transport},
	})
}

func (s *stack) page() string { return "http://" + s.listener.Addr().String() + "/" }

// welcome prints the addresses.
func (s *stack) welcome() {
	fmt.Fprintf(s.out, `
  the pages      %s
  your services  export DATABASE_URL='%s'
                 export KAFKA_BROKERS=%s
  commands       relay status --config=%s
  the data       %s  (delete it to begin anew)

What is published passes here. Ctrl-C stops everything.

`, s.page(), s.url, strings.Join(s.brokers, ","), s.config, s.dir)
}
