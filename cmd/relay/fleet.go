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

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

const (
	// listEvery is the time between two looks at what outboxes there are.
	listEvery = 10 * time.Second
	// watchEvery is the time between two looks at an outbox that is asleep, for an id that was drawn: what it adds to
	// an event's latency. wholeEvery is that between two looks for whatever may wait.
	watchEvery = time.Second
	wholeEvery = 5 * time.Second
	// lookTimeout bounds one look, and watchShare is how many times as long as it took the next one waits.
	lookTimeout = 5 * time.Second
	watchShare  = 20
	// turnTimeout bounds the wait for a connection, behind the looks at the other outboxes of a database.
	turnTimeout = 30 * time.Second
	// archiveTurn is how long an outbox with an archive sleeps at most: its days are made and dropped.
	archiveTurn = time.Hour
)

// fleet serves many outboxes in one process (docs/decisions/0031-many-outboxes.md): each has a relay of its own while
// there is work, with its own connections to Postgres, and one look a second otherwise.
type fleet struct {
	*runCommand
	p         *program
	conn      *kafkaconn.Conn
	kafka     *publisher.Kafka // whose connections the outboxes' own share
	metrics   *fleetMetrics
	pages     *pages        // nil: not wanted
	listEvery time.Duration // tests lower it

	listed    atomic.Bool // the outboxes are known
	undrained atomic.Int64

	mu      sync.Mutex
	members map[string]*member
	pools   map[string]*sharedPool // by place
	claims  map[string]*member     // by which outbox it is to its server
	woken   chan struct{}          // closed at the next SIGUSR1
}

// runFleet is run for a list of outboxes.
func (c *runCommand) runFleet(ctx context.Context, p *program) error {
	if c.Sleep > 0 && c.Source == "wal" {
		return service.Usage("--sleep: not with --source=wal, whose connection keeps the server awake")
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
	if f.pages, err = c.openPages(p, f.conn); err != nil {
		return err
	}
	defer f.pages.close()
	_, others, end, err := c.beside(ctx, p, f.health(ctx), f.pages, f.wake)
	if err != nil {
		return err
	}
	defer end()
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
	conn, err := c.Config.New(kafkaTokens)
	if err != nil {
		return nil, &service.UsageError{Err: err}
	}
	if unwise := conn.Warning(); unwise != "" {
		p.log.Warn(unwise)
	}
	f := &fleet{
		runCommand: c, p: p, conn: conn, members: map[string]*member{}, pools: map[string]*sharedPool{},
		claims: map[string]*member{}, listEvery: listEvery, woken: make(chan struct{}),
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
		woken := f.nextWake()
		if err == nil {
			f.update(ctx, list)
			f.listed.Store(true)
			said = ""
			if err := f.pages.show(ctx, f.database, list); err != nil {
				f.p.log.Error("there are no pages; publishing goes on", "err", err)
			}
		} else if text := err.Error(); text != said && ctx.Err() == nil {
			f.p.log.Error("cannot look what outboxes there are; those that are known are served", "err", err)
			said = text
		}
		if f.Discover == "" {
			_ = sleep.For(ctx, f.listEvery)
		} else {
			f.rest(ctx, woken, f.listEvery)
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

// rest is the pause between two looks at a database. With --sleep it is longer, and ends at the same moments for all: a
// database wakes once for all its outboxes.
func (f *fleet) rest(ctx context.Context, woken <-chan struct{}, pause time.Duration) {
	if f.Sleep > 0 {
		pause = max(pause, time.Until(time.Now().Truncate(f.Sleep).Add(f.Sleep)))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-woken:
	case <-timer.C:
	}
}

// nextWake is closed by the next wake.
func (f *fleet) nextWake() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.woken
}

// wake has all outboxes looked at now.
func (f *fleet) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.woken)
	f.woken = make(chan struct{})
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
