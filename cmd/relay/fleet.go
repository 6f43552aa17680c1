package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

const (
	// listEvery is the time between two looks at what outboxes there are.
	listEvery = 10 * time.Second
	// watchEvery is the time between two looks at an outbox that is asleep: what it adds to an event's latency.
	watchEvery = time.Second
	// lookTimeout bounds one look, and watchShare is how many times as long as it took the next one waits.
	lookTimeout = 5 * time.Second
	watchShare  = 20
	// asleepAfter is how long nothing was appended and nothing waits when an outbox's relay is ended.
	asleepAfter = 30 * time.Second
	// archiveTurn is how long an outbox with an archive sleeps at most: its days are made and dropped.
	archiveTurn = time.Hour
	// watchConns is how many connections all outboxes of a database that are asleep have together.
	watchConns = 2
)

// fleet serves many outboxes in one process (docs/decisions/0031-many-outboxes.md): each has a relay of its own while
// there is work, with its own connections to Postgres, and one look a second otherwise.
type fleet struct {
	*runCommand
	p       *program
	conn    *kafkaconn.Conn
	kafka   *publisher.Kafka // whose connections the outboxes' own share
	metrics *fleetMetrics
	// listEvery and asleepAfter; tests lower them
	listEvery, asleepAfter time.Duration

	listed    atomic.Bool // the outboxes are known
	undrained atomic.Int64

	mu      sync.Mutex
	members map[string]*member
	pools   map[string]*sharedPool // by place
	claims  map[string]*member     // by which outbox it is to its server
}

// errListedTwice: two names mean one outbox. Only one of them is served.
var errListedTwice = errors.New("the list has this outbox twice")

// sharedPool is a database's, for looks at outboxes that are asleep.
type sharedPool struct {
	*pgxpool.Pool
	users int
}

// runFleet is run for a list of outboxes.
func (c *runCommand) runFleet(ctx context.Context, p *program) error {
	if c.Sleep > 0 {
		return service.Usage("--sleep: not with many outboxes, which are looked at every %v", watchEvery)
	}
	if c.Discover == "" { // what is wrong is refused before anything happens
		if _, err := c.outboxes(ctx); err != nil {
			return err
		}
	}
	f, err := c.newFleet(p)
	if err != nil {
		return err
	}
	defer func() { _ = f.kafka.Close() }()
	listener, err := service.Listen(c.Listen)
	if err != nil {
		return &service.UsageError{Err: err}
	}
	if listener != nil {
		p.log.Info("listening", "address", listener.Addr().String())
	}
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	defer others.Wait()
	defer end()
	others.Go(func() {
		if err := service.ServeOn(beside, listener, f.health(ctx).Handler()); err != nil {
			p.log.Error("no more health and metrics; the relays go on", "err", err)
		}
	})
	others.Go(func() { reportKafka(ctx, p.log, f.conn) })
	p.log.Info("running", "version", version())
	if err := f.follow(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	if n := f.undrained.Load(); n > 0 {
		return &undrainedError{fmt.Errorf("%w: of %d outboxes", relay.ErrNotDrained, n)}
	}
	p.log.Info("stopped; what was claimed is published, and the lanes are free")
	return nil
}

// newFleet makes what the outboxes share, and connects to nothing.
func (c *runCommand) newFleet(p *program) (*fleet, error) {
	if err := c.refuseZero(); err != nil {
		return nil, err
	}
	conn, err := c.Config.New(service.KafkaTokens)
	if err != nil {
		return nil, &service.UsageError{Err: err}
	}
	if unwise := conn.Warning(); unwise != "" {
		p.log.Warn(unwise)
	}
	f := &fleet{
		runCommand: c, p: p, conn: conn, members: map[string]*member{}, pools: map[string]*sharedPool{},
		claims: map[string]*member{}, listEvery: listEvery, asleepAfter: asleepAfter,
	}
	f.metrics = newFleetMetrics(f)
	if f.kafka, err = c.newKafka(conn, publisher.Config{Logger: p.log}); err != nil {
		return nil, err
	}
	return f, nil
}

// follow serves what the list names, looking at it again and again, until ctx ends and all are drained. It fails when
// the first look does for a reason that no waiting mends.
func (f *fleet) follow(ctx context.Context) error {
	defer f.end()
	list, err := f.firstList(ctx)
	if err != nil {
		return err
	}
	said := ""
	for ctx.Err() == nil {
		if err == nil {
			f.update(ctx, list)
			f.listed.Store(true)
			said = ""
		} else if text := err.Error(); text != said && ctx.Err() == nil {
			f.p.log.Error("cannot look what outboxes there are; those that are known are served", "err", err)
			said = text
		}
		if sleep.For(ctx, f.listEvery) != nil {
			break
		}
		list, err = f.outboxes(ctx)
	}
	return nil
}

func (f *fleet) firstList(ctx context.Context) (list []namedOutbox, err error) {
	err = untilAnswered(ctx, f.p.log, func(ctx context.Context) error {
		list, err = f.outboxes(ctx)
		return err
	})
	return list, err
}

// update lets go of what is not listed any more, or is another one now, and begins to serve what is new: what takes
// another's name, when that has drained.
func (f *fleet) update(ctx context.Context, list []namedOutbox) {
	listed := map[string]namedOutbox{}
	for _, o := range list {
		listed[o.name] = o
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, m := range f.members {
		if o, still := listed[name]; !still || !m.same(o) {
			m.leave()
			f.unclaim(m) // it may be served under another name now
		}
	}
	for _, o := range list {
		if f.members[o.name] == nil {
			f.members[o.name] = f.join(ctx, o)
		}
	}
}

// end lets go of all, and returns when they have drained.
func (f *fleet) end() {
	f.update(context.Background(), nil)
	for _, m := range f.served() {
		<-m.done
	}
}

// join begins to serve an outbox.
func (f *fleet) join(ctx context.Context, o namedOutbox) *member {
	ctx, leave := context.WithCancel(ctx)
	m := &member{
		namedOutbox: o, fleet: f, db: f.of(o), leave: leave, done: make(chan struct{}),
		log: f.p.log.With("outbox", o.name),
		pause: backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Second),
			backoff.WithMaxInterval(time.Minute), backoff.WithMaxElapsedTime(0)),
	}
	go func() {
		defer close(m.done)
		defer f.forget(m)
		m.run(ctx)
	}()
	return m
}

func (f *fleet) forget(m *member) {
	m.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unclaim(m)
	delete(f.members, m.name)
}

// claim makes an outbox a member's, until it is let go. What its server calls it changes when that is restarted.
func (f *fleet) claim(ctx context.Context, m *member, outbox string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if other := f.claims[outbox]; other != nil && other != m {
		return fmt.Errorf("%w: %q is in the same server, database and schema; take one of them out", errListedTwice,
			other.name)
	}
	if m.outbox != outbox {
		f.unclaim(m)
		f.claims[outbox], m.outbox = m, outbox
	}
	return nil
}

// unclaim gives a member's outbox free. The caller holds f.mu.
func (f *fleet) unclaim(m *member) {
	if m.outbox != "" {
		delete(f.claims, m.outbox)
		m.outbox = ""
	}
}

// pool is the one that outboxes of a database share; release gives it back.
func (f *fleet) pool(m *member) (pool *pgxpool.Pool, release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	shared := f.pools[m.place]
	if shared == nil {
		cfg, err := m.db.config()
		if err != nil {
			return nil, nil, err
		}
		if host := service.PlainText(cfg.ConnConfig); host != "" {
			m.log.Warn("the connection to Postgres may not be encrypted: set sslmode=verify-full in the database's URL",
				"host", host)
		}
		cfg.MaxConns = watchConns
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			return nil, nil, fmt.Errorf("opening the database: %w", err)
		}
		shared = &sharedPool{Pool: pool}
		f.pools[m.place] = shared
	}
	shared.users++
	return shared.Pool, func() {
		f.mu.Lock()
		shared.users--
		last := shared.users == 0
		if last {
			delete(f.pools, m.place)
		}
		f.mu.Unlock()
		if last {
			shared.Close()
		}
	}, nil
}

// served are the outboxes that are served, by name.
func (f *fleet) served() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*member, 0, len(f.members))
	for _, m := range f.members {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	return all
}

// mostNamed is how many outboxes a page names.
const mostNamed = 20

// health: an outbox that is ill makes no process unready, for the others need it.
func (f *fleet) health(ctx context.Context) service.Health {
	return service.Health{
		Registry: f.metrics.registry, Pprof: f.Pprof,
		Ready: func(context.Context) error {
			switch {
			case ctx.Err() != nil:
				return errors.New("stopping")
			case !f.listed.Load():
				return errors.New("starting: it is not known yet what outboxes there are")
			}
			return nil
		},
		Moving: func() error {
			var ill []string
			for _, m := range f.served() {
				if err := m.unmoved(f.StalledAfter); err != nil {
					ill = append(ill, fmt.Sprintf("%s: %v", m.name, err))
				}
			}
			if more := len(ill) - mostNamed; more > 0 {
				ill = append(ill[:mostNamed], fmt.Sprintf("and %d more", more))
			}
			if len(ill) == 0 {
				return nil
			}
			return errors.New(strings.Join(ill, "\n"))
		},
	}
}
