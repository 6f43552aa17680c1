package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgtls"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

type runCommand struct {
	database
	kafkaconn.Config `group:"Kafka:"`
	Listen           string `default:"127.0.0.1:9187" help:"Address of /healthz, /readyz, /healthz/moving and /metrics; off for none."`
	Migrate          bool   `default:"false" help:"Migrate the outbox's tables first. The role then owns them."`
	Name             string `shown:"host:pid" help:"Shown by status beside the lanes of this relay."`

	Feed string `default:"table" enum:"table,wal" help:"Where events are read: table, or wal, through a replication slot (see relay wal setup)."`

	Lease         time.Duration `default:"15s" help:"How long a silent relay keeps its lanes. All relays of an outbox need the same; at least 1s."`
	Pumps         int           `default:"2" help:"Claims under way at a time, 1 to 32."`
	ClaimEvents   int           `default:"8000" help:"Most events of a claim, 32 to 100000."`
	ClaimBytes    int           `default:"16777216" help:"Most bytes of a claim's payloads, at least 1048576. Memory grows with it."`
	DrainTimeout  time.Duration `default:"20s" help:"How long a relay may still publish its claimed events after a signal; 0: not at all."`
	HoldAfter     time.Duration `default:"5s" help:"How long a partition may fail to answer while others answer or none is tried, before its events are held and the others continue; negative: never."`
	Park          string        `default:"key" enum:"key,event" help:"What is parked when Kafka refuses an event permanently: its key (later events wait, in order), or the event alone."`
	ArchiveDays   int           `default:"0" help:"For how many days published events are kept in outbox_archive; 0: they are deleted."`
	ProbeInterval time.Duration `default:"18ms" help:"Pause between two probes for events while events arrive; at least 1ms."`
	IdleAfter     time.Duration `default:"30s" help:"Time without an event after which a relay is idle: it then probes every 250ms, or sleeps."`
	Sleep         time.Duration `default:"0s" help:"How long an idle relay makes no query, so that the database can sleep too; events may wait for so long; 0: it never sleeps. SIGUSR1 wakes it. Not with --feed=wal."`

	KafkaClientID  string        `name:"kafka-client-id" default:"effectonce" help:"Name in the brokers' logs and quotas."`
	Compression    string        `default:"snappy" enum:"none,gzip,snappy,lz4,zstd" help:"none, gzip, snappy, lz4 or zstd. KafkaJS has only gzip and none by itself."`
	PublishTimeout time.Duration `default:"10s" help:"How long one request to Kafka may take, at least 100ms. Then it is sent again."`
	BatchBytes     int           `default:"1000000" help:"Most bytes of a request, before compression. Keep it under the topics' max.message.bytes."`
	RequestBytes   int           `default:"104857600" help:"Largest request that the brokers take (socket.request.max.bytes). An event that needs a larger one is refused, and parked."`

	RestoreCheck bool          `default:"true" negatable:"" help:"Check at the start, and after a sleep, whether Kafka holds more than this database has published, as after a restore, and then refuse to publish."`
	StalledAfter time.Duration `default:"60s" help:"How long events may wait without any being published before /healthz/moving answers 503."`
	MemoryLimit  int           `default:"150" help:"MiB at which the garbage collector begins to work hard; negative: never. GOMEMLIMIT wins."`
	UI           bool          `name:"ui" default:"false" help:"Serve the pages of relay ui too, over connections of their own."`
	Pages        pageFlags     `embed:"" prefix:"ui-" group:"Pages (--ui):"`
	Pprof        bool          `default:"false" help:"Serve /debug/pprof/ too, to this machine only: it shows the content of memory."`
}

// Help is the longer text of --help.
func (*runCommand) Help() string {
	return `Run two or more: they share the outbox's lanes, and take over the lanes of a relay that ends. They wait for a Postgres or
Kafka that is unavailable. SIGTERM, SIGINT or SIGHUP drains: claimed events are published, then the lanes go to the
others.`
}

// components are made by run, which must close them.
type components struct {
	pool        *pgxpool.Pool
	outbox      *relay.Outbox // on pool
	kafka       *publisher.Kafka
	relay       *relay.Relay
	conn        *kafkaconn.Conn
	metrics     *runMetrics
	schemaReady atomic.Bool // the tables were found to be right
	unchecked   atomic.Pointer[unchecked]
	first       *firstUses
}

// unchecked is why the outbox's numbers could not be compared with Kafka's yet: nothing is published.
type unchecked struct {
	since time.Time
	err   error
}

func (c *runCommand) run(ctx context.Context, p *program) error {
	if p.env("GOMEMLIMIT") == "" && c.MemoryLimit > 0 {
		debug.SetMemoryLimit(int64(min(c.MemoryLimit, math.MaxInt32)) << 20)
	}
	if c.several {
		return c.runFleet(ctx, p)
	}
	s, err := c.start(p)
	if err != nil {
		return err
	}
	defer s.pool.Close()
	defer func() { _ = s.kafka.Close() }()
	shown, err := c.openPages(p, s.conn)
	if err != nil {
		return err
	}
	defer shown.close()
	beside, others, end, err := c.beside(ctx, p, c.health(ctx, s), shown, s.relay.Wake)
	if err != nil {
		return err
	}
	defer end()
	if err := shown.show(ctx, c.database, nil); err != nil {
		return err
	}
	if err := c.ensureSchema(ctx, p.log, s.pool, c.Migrate); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before the start
		}
		return err
	}
	s.schemaReady.Store(true)
	if _, err := s.awaitNumbers(ctx, p.log); err != nil {
		return withAdvice(err)
	}
	others.Go(func() { _ = s.metrics.Run(beside, s.relay) })
	others.Go(func() { reportKafka(ctx, p.log, s.conn) })
	p.log.Info("running", "version", version())
	if err := s.first.until(ctx, s.relay.Run); err != nil {
		if errors.Is(err, relay.ErrNotDrained) {
			return &undrainedError{err}
		}
		return withAdvice(err)
	}
	p.log.Info("stopped; what was claimed is published, and the lanes are free")
	return nil
}

// awaitNumbers compares the outbox's numbers with Kafka's, and returns the outbox's identity. It waits for a database
// or a Kafka that is away.
func (s *components) awaitNumbers(ctx context.Context, log *slog.Logger) (outbox string, err error) {
	since := time.Now()
	defer s.unchecked.Store(nil)
	for pause := pauses(); ; {
		outbox, err := s.first.compare(ctx, s.outbox)
		switch {
		case ctx.Err() != nil:
			return "", nil
		case err == nil || !errors.Is(err, errUnread) && !pgerr.Away(err) && !pgerr.Retry(err):
			return outbox, err
		}
		s.unchecked.Store(&unchecked{since, err})
		log.Warn("cannot check yet whether the outbox was restored", "error", err)
		_ = sleep.For(ctx, pause.NextBackOff())
	}
}

// openPages returns nil without --ui.
func (c *runCommand) openPages(p *program, conn *kafkaconn.Conn) (*pages, error) {
	if !c.UI {
		return nil, nil
	}
	g, err := c.Pages.open(p, "ui-", conn)
	if err != nil {
		return nil, err
	}
	g.sleeps = c.Sleep > 0
	return g, nil
}

// beside starts health, metrics and pages, and wakes a sleeping relay at a signal. All of them continue during the
// drain: others get the context that it returns, and end ends them and waits.
func (c *runCommand) beside(ctx context.Context, p *program, health process.Health, shown *pages, wake func()) (
	_ context.Context, others *sync.WaitGroup, end func(), err error,
) {
	listener, err := process.Listen(c.Listen)
	if err != nil {
		return nil, nil, nil, &service.UsageError{Err: err}
	}
	if listener != nil {
		p.log.Info("listening", "address", listener.Addr().String())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	others = &sync.WaitGroup{}
	others.Go(func() { wakeOnSignal(ctx, wake) })
	handler := health.Handler()
	if c.Pprof {
		handler = service.Pprof(handler)
	}
	others.Go(func() {
		if err := process.Serve(ctx, listener, handler); err != nil {
			p.log.Error("health and metrics are no longer served; publishing continues", "error", err)
		}
	})
	others.Go(func() {
		if err := shown.serve(ctx); err != nil {
			p.log.Error("the pages are no longer served; publishing continues", "error", err)
		}
	})
	return ctx, others, func() { cancel(); others.Wait() }, nil
}

// start makes everything and connects to nothing, so that wrong settings are refused first.
func (c *runCommand) start(p *program) (_ *components, err error) {
	s := &components{}
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	conn, err := c.Config.New(kafkaTokens)
	if err != nil {
		return nil, &service.UsageError{Err: err}
	}
	s.conn = conn
	if unwise := conn.Warning(); unwise != "" {
		p.log.Warn(unwise)
	}
	if host := pgtls.PlainText(cfg.ConnConfig); host != "" {
		p.log.Warn("the connection to Postgres may not be encrypted: set sslmode=verify-full in the database's URL",
			"host", host)
	}
	if err := c.refuseZero(); err != nil {
		return nil, err
	}
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	defer func() {
		if err != nil {
			s.pool.Close()
		}
	}()
	if s.metrics, err = newRunMetrics(); err != nil {
		return nil, err
	}
	if s.outbox, err = relay.Open(s.pool, c.Schema); err != nil {
		return nil, service.Usage("--schema: %w", err)
	}
	var pin func(ctx context.Context, cluster, topic string, partitions int) (int, error)
	s.first, pin = c.newFirstUses(p.log, s.pool, c.Schema, conn, s.outbox.Pin)
	s.kafka, err = c.newKafka(conn, publisher.Config{Pin: pin, Logger: p.log, Observer: s.metrics.Publisher()})
	if err != nil {
		return nil, err
	}
	cfgOf := c.relayConfig()
	cfgOf.Logger, cfgOf.Observer = p.log, s.metrics.Observer()
	cfgOf.Check = func(ctx context.Context) (string, error) { return s.awaitNumbers(ctx, p.log) }
	if s.relay, err = relay.New(s.pool, s.kafka, cfgOf); err != nil {
		_ = s.kafka.Close()
		return nil, service.Usage("%s", asFlags(err))
	}
	return s, nil
}

// newKafka makes a publisher with the settings of the flags.
func (c *runCommand) newKafka(conn *kafkaconn.Conn, cfg publisher.Config) (*publisher.Kafka, error) {
	cfg.ClientID, cfg.Compression, cfg.Timeout, cfg.BatchBytes = c.KafkaClientID, c.Compression, c.PublishTimeout,
		c.BatchBytes
	cfg.RequestBytes, cfg.Dial, cfg.SASL = c.RequestBytes, conn.Dial, conn.SASL()
	k, err := publisher.NewKafka(conn.Brokers(), cfg)
	if err != nil {
		return nil, &service.UsageError{Err: err}
	}
	return k, nil
}

// relayConfig returns the Config of the flags.
func (c *runCommand) relayConfig() relay.Config {
	return relay.Config{
		Schema: c.Schema, Name: c.Name, Feed: c.feed(), Lease: c.Lease, Pumps: c.Pumps, ClaimEvents: c.ClaimEvents,
		ClaimBytes: c.ClaimBytes, ProbeAwake: c.ProbeInterval, ProbeIdle: max(c.ProbeInterval, 250*time.Millisecond),
		IdleAfter: c.IdleAfter, Sleep: c.Sleep, DrainTimeout: c.drainTimeout(), HoldAfter: c.HoldAfter,
		OnFailure: c.park(), ArchiveDays: c.ArchiveDays,
	}
}

// all: a run without --outbox serves every outbox that is listed.
func (*runCommand) all() {}

// asFlags replaces the fields of a relay.Config by their flags in an error.
func asFlags(err error) string {
	return strings.NewReplacer("relay: ", "", "Lease is", "--lease is", "Pumps is", "--pumps is", "ClaimEvents is",
		"--claim-events is",
		"ClaimBytes is", "--claim-bytes is", "ProbeAwake is", "--probe-interval is", "IdleAfter is",
		"--idle-after is", "Sleep is", "--sleep is", "FeedWAL", "--feed=wal", "ArchiveDays is",
		"--archive-days is").Replace(err.Error())
}

// refuseZero refuses zero values: the packages would take them for defaults.
func (c *runCommand) refuseZero() error {
	for flag, zero := range map[string]bool{
		"lease": c.Lease == 0, "pumps": c.Pumps == 0, "claim-events": c.ClaimEvents == 0,
		"claim-bytes": c.ClaimBytes == 0,
		"hold-after":  c.HoldAfter == 0, "probe-interval": c.ProbeInterval == 0, "idle-after": c.IdleAfter == 0,
		"publish-timeout": c.PublishTimeout == 0,
		"batch-bytes":     c.BatchBytes == 0, "request-bytes": c.RequestBytes == 0,
		"stalled-after": c.StalledAfter <= 0,
		"memory-limit":  c.MemoryLimit == 0,
	} {
		if zero {
			return service.Usage("--%s: want a value above zero, or leave it out for its default", flag)
		}
	}
	return nil
}

func (c *runCommand) park() relay.FailurePolicy {
	if c.Park == "event" {
		return relay.ParkEvent
	}
	return relay.ParkKey
}

func (c *runCommand) feed() relay.Feed {
	if c.Feed == "wal" {
		return relay.FeedWAL
	}
	return relay.FeedTable
}

// drainTimeout returns the timeout for Config, in which zero means the default and negative means none.
func (c *runCommand) drainTimeout() time.Duration {
	if c.DrainTimeout == 0 {
		return -1
	}
	return c.DrainTimeout
}

// slotReady fails if the slot that the WAL is read from is about to be lost.
func (c *runCommand) slotReady(ctx context.Context, s *components) error {
	if c.Feed != "wal" {
		return nil
	}
	st, err := s.outbox.WALStatus(ctx)
	if err != nil {
		return err
	}
	return slotLags(st)
}

// slotLags fails if Postgres keeps the slot's WAL only until the next checkpoint.
func slotLags(st *relay.WALStatus) error {
	if st == nil || st.State != "unreserved" && st.State != "lost" {
		return nil
	}
	return fmt.Errorf("the replication slot %s is %s: it is %s behind, more than max_slot_wal_keep_size allows; is "+
		"the relay kept from publishing?", st.Slot, st.State, size(st.LagBytes))
}

// health: Ready does not depend on Kafka once the outbox's numbers are compared with Kafka's, because no other relay
// would be readier.
func (c *runCommand) health(ctx context.Context, s *components) process.Health {
	return process.Health{
		Metrics: promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}),
		Ready: func(asking context.Context) error {
			switch {
			case ctx.Err() != nil:
				return errors.New("stopping")
			case !s.schemaReady.Load():
				return errors.New("starting: Postgres has not answered yet")
			}
			if u := s.unchecked.Load(); u != nil {
				return u.err
			}
			if s.relay.Asleep() {
				return nil // a query would wake the database
			}
			if err := s.pool.Ping(asking); err != nil {
				return fmt.Errorf("no answer from Postgres: %w", err)
			}
			if err := s.relay.WALUnavailable(); err != nil {
				return fmt.Errorf("events are published from the table: %w", err)
			}
			return c.slotReady(asking, s)
		},
		Moving: func() error {
			if u := s.unchecked.Load(); u != nil && time.Since(u.since) > c.StalledAfter {
				return u.err
			}
			if stalled := s.relay.Stalled(); stalled > c.StalledAfter {
				return fmt.Errorf("events wait, and none was published for %v%s", stalled.Round(time.Second),
					s.metrics.away())
			}
			return nil
		},
	}
}
