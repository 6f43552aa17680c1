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
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

const (
	// listEvery is the time between two reads of the list of outboxes.
	listEvery = 10 * time.Second
	// watchEvery is the time between two checks of a sleeping outbox for a newly drawn id, which it adds to an event's
	// latency. wholeEvery is the time between two checks for all kinds of work.
	watchEvery = time.Second
	wholeEvery = 5 * time.Second
	// checkTimeout limits one check. The pause before the next one is watchShare times its duration.
	checkTimeout = 5 * time.Second
	watchShare   = 20
	// turnTimeout limits the wait for a connection, after the checks of the other outboxes of a database.
	turnTimeout = 30 * time.Second
	// archiveTurn is how long an outbox with an archive sleeps at most: days must be made and dropped.
	archiveTurn = time.Hour
)

// fleet serves many outboxes in one process (docs/decisions/0031-many-outboxes.md). Each has a relay of its own while
// there is work, with its own connections to Postgres; without work it is checked once per second.
type fleet struct {
	*runCommand
	p         *program
	conn      *kafkaconn.Conn
	kafka     *publisher.Kafka // its connections are shared by all outboxes
	metrics   *fleetMetrics
	pages     *pages        // nil: not wanted
	listEvery time.Duration // tests lower it

	listed    atomic.Bool // the list was read
	unlisted  atomic.Pointer[unlisted]
	undrained atomic.Int64

	mu      sync.Mutex
	members map[string]*member
	pools   map[string]*sharedPool // by their URLs
	claims  map[string]*member     // by the outbox's identity on its server
	woken   chan struct{}          // closed at the next SIGUSR1
}

// unlisted says since when the list of outboxes cannot be read, and why.
type unlisted struct {
	since time.Time
	err   error
}

// runFleet is run with a list of outboxes.
func (c *runCommand) runFleet(ctx context.Context, p *program) error {
	if c.Sleep > 0 && c.Feed == "wal" {
		return service.Usage("--sleep: not with --feed=wal, whose connection keeps the server awake")
	}
	if c.Discover == "" { // the file is checked before anything is started
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

// newFleet makes the shared parts, and connects to nothing.
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

// follow serves the listed outboxes, reading the list again and again, until ctx ends and all are drained. It fails if
// the first read fails in a way that waiting cannot repair.
func (f *fleet) follow(ctx context.Context) error {
	defer f.end()
	list, err := f.firstList(ctx)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		f.p.log.Warn("nothing is published", "error", errNoneListed)
	}
	for ctx.Err() == nil {
		woken := f.nextWake()
		if err == nil {
			f.update(ctx, list)
			f.listed.Store(true)
			f.unlisted.Store(nil)
			if err := f.pages.show(ctx, f.database, list); err != nil {
				f.p.log.Error("there are no pages; publishing goes on", "error", err)
			}
		} else if ctx.Err() == nil {
			f.unread(err)
		}
		if f.Discover == "" {
			_ = sleep.For(ctx, f.listEvery)
		} else {
			f.rest(ctx, woken, f.listEvery)
		}
		list, err = f.outboxes(ctx)
		if err == nil && len(list) == 0 && f.Discover != "" && len(f.served()) > 0 {
			err = fmt.Errorf("it was not empty before: %w (once all are gone on purpose, end this process)",
				errNoneListed)
		}
	}
	return nil
}

// unread logs once why the list cannot be read.
func (f *fleet) unread(err error) {
	before := f.unlisted.Load()
	if before != nil && before.err.Error() == err.Error() {
		return
	}
	now := &unlisted{time.Now(), err}
	if before != nil {
		now.since = before.since
	}
	f.unlisted.Store(now)
	f.p.log.Error("cannot read the list of outboxes; the known ones are still served", "error", err)
}

func (f *fleet) firstList(ctx context.Context) (list []namedOutbox, err error) {
	err = untilAnswered(ctx, f.p.log, func(ctx context.Context) error {
		list, err = f.outboxes(ctx)
		return err
	})
	return list, err
}

// update stops outboxes that are no longer listed, or have changed, and starts new ones; one that takes another's name
// starts when that one has drained.
func (f *fleet) update(ctx context.Context, list []namedOutbox) {
	listed := map[string]namedOutbox{}
	for _, o := range list {
		listed[o.name] = o
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, m := range f.members {
		if o, still := listed[name]; !still || !m.same(o) {
			if list != nil && !still && !m.left {
				m.left = true
				m.log.Warn("the outbox is not listed any more: its events wait")
			}
			m.leave()
			f.unclaim(m) // another name may serve it now
		}
	}
	for _, o := range list {
		if f.members[o.name] == nil {
			f.members[o.name] = f.join(ctx, o)
			if f.listed.Load() {
				f.members[o.name].log.Info("the outbox is listed: it is served")
			}
		}
	}
}

// rest is the pause between two checks of a database. With --sleep it is longer, and ends at the same time for all: a
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

// nextWake returns a channel that the next wake closes.
func (f *fleet) nextWake() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.woken
}

// wake makes the fleet check all outboxes now.
func (f *fleet) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.woken)
	f.woken = make(chan struct{})
}

// end stops all outboxes, and returns when they have drained.
func (f *fleet) end() {
	f.update(context.Background(), nil)
	for _, m := range f.served() {
		<-m.done
	}
}

// join starts to serve an outbox.
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

// served returns the served outboxes by name.
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

// mostNamed is how many outboxes a health page names.
const mostNamed = 20

// health: a failing outbox does not make the process unready, because the others need it.
func (f *fleet) health(ctx context.Context) process.Health {
	return process.Health{
		Metrics: promhttp.HandlerFor(f.metrics.registry, promhttp.HandlerOpts{}),
		Ready: func(context.Context) error {
			switch {
			case ctx.Err() != nil:
				return errors.New("stopping")
			case !f.listed.Load():
				return errors.New("starting: the list of outboxes has not been read yet")
			}
			return nil
		},
		Moving: func() error {
			var ill []string
			if u := f.unlisted.Load(); u != nil && time.Since(u.since) > f.StalledAfter {
				ill = append(ill, fmt.Sprintf("new outboxes are not served, as the list cannot be read: %v", u.err))
			}
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
