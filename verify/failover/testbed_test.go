package failover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/dump"
	"github.com/effectonce/effectonce/verify/history/tables"
	"github.com/effectonce/effectonce/verify/history/tap"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

// name is the consumer's. Outbox and inbox are in the same database.
const name = "ledger"

// testbed is a primary with a standby, and a proxy as the primary's address.
type testbed struct {
	t                *testing.T
	primary, standby *pgtest.Server
	old, db          *pgtest.DB // the primary's database, and the standby's
	proxy            *pgtest.Proxy
	topic, dir       string
	source           dump.Site
	payments         atomic.Int64 // events of known commits
	log, workers     logBuffer    // of the relays, and of the workers
}

func newTestbed(t *testing.T, synchronous bool) *testbed {
	t.Helper()
	kafkatest.RequireReal(t)
	primary := pgtest.NewServer(t)
	db := primary.Database(t, migrations.Outbox, migrations.Inbox)
	db.Exec(t, tables.SQLTables)
	return newTestbedOn(t, synchronous, primary, db, db.URL)
}

// newTestbedOn makes a testbed on an existing primary. The processes connect as the URL's user.
func newTestbedOn(t *testing.T, synchronous bool, primary *pgtest.Server, db *pgtest.DB, url string) *testbed {
	t.Helper()
	s := &testbed{t: t, primary: primary, old: db, dir: t.TempDir(), topic: kafkatest.Topic(t, 3)}
	s.standby = s.primary.Standby(t, "standby")
	pgtest.AwaitSQL(t, s.old, `select count(*) = 1 from pg_stat_replication where state = 'streaming'`)
	if synchronous {
		s.old.RequireStandby(t, "standby")
	}
	s.db = s.old.At(t, s.standby)
	// Otherwise it says only every ten seconds how far it has replayed.
	s.db.Exec(t, `alter system set wal_receiver_status_interval = '1s'`)
	s.db.Exec(t, `select pg_reload_conf()`)
	s.proxy = pgtest.NewProxy(t, url)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the relays:\n%s", s.log.String())
			t.Logf("log of the workers:\n%s", s.workers.String())
		}
	})
	s.source = dump.Site{
		DB: s.db.Pool, Brokers: kafkatest.Brokers(t), Topics: []string{s.topic},
		Consumers: []dump.Consumer{{Name: name, Group: s.topic, Topics: []string{s.topic}}},
	}
	return s
}

// promote promotes the standby and moves the proxy to it.
func (s *testbed) promote() {
	s.t.Helper()
	s.standby.Promote(s.t)
	s.proxy.To(s.t, s.standby.URL())
	s.proxy.CutAll()
}

// task is a goroutine that runs until it is stopped.
type task struct {
	stop context.CancelFunc
	done chan error
	once sync.Once
}

func (s *testbed) start(run func(ctx context.Context) error) *task {
	ctx, stop := context.WithCancel(s.t.Context())
	p := &task{stop: stop, done: make(chan error, 1)}
	go func() { p.done <- run(ctx) }()
	s.t.Cleanup(func() { p.stopAndWait(s.t) })
	return p
}

func (p *task) stopAndWait(t *testing.T) {
	t.Helper()
	p.once.Do(func() {
		p.stop()
		if err := <-p.done; err != nil {
			t.Error(err)
		}
	})
}

func (s *testbed) history(process string) *history.Writer {
	s.t.Helper()
	w, err := history.Create(s.dir, process)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := w.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return w
}

func (s *testbed) pool(url string) *pgxpool.Pool {
	s.t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

// producer runs one transaction after the other and ignores failures of the database.
func (s *testbed) producer(process, url string) *task {
	w, db := s.history(process), s.pool(url)
	return s.start(func(ctx context.Context) error {
		for n := 0; ctx.Err() == nil; n++ {
			if err := s.pay(ctx, w, db, process, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// pay runs a transaction of a few events. It fails only if it cannot write the history.
func (s *testbed) pay(ctx context.Context, w *history.Writer, db *pgxpool.Pool, process string, n int) error {
	ctx = context.WithoutCancel(ctx) // a stopped producer finishes its transaction
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var recorded []history.Event
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil //nolint:nilerr // the database is away
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for i := range 1 + n%3 {
		key := fmt.Sprintf("account-%d", (n*7+i)%15)
		version, err := tables.NextVersion(ctx, tx, "", key)
		if err != nil {
			return nil //nolint:nilerr // nothing was committed
		}
		e := event.Event{
			ID: event.NewID(), Topic: s.topic, Key: key, Type: "Paid",
			Payload: fmt.Appendf(nil, "%s %d %d", process, n, i),
		}
		recorded = append(recorded, tables.Describe(&e, version, e.ID.String()))
		if err := errors.Join(tables.Record(ctx, tx, recorded[i]), outbox.Append(ctx, tx, e)); err != nil {
			return nil //nolint:nilerr // likewise
		}
	}
	op, err := w.Write(history.Entry{Kind: history.KindAppend, Events: recorded})
	if err != nil {
		return err
	}
	end := history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.OK}
	if err := tx.Commit(ctx); err != nil {
		end.Err, end.Outcome = err.Error(), history.Failed
		if pgerr.CommitUnknown(err) {
			end.Outcome = history.Unknown
		}
	} else {
		s.payments.Add(int64(len(recorded)))
	}
	_, err = w.Write(end)
	return err
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (s *testbed) relay(process, url string, change ...func(*relay.Config)) *task {
	s.t.Helper()
	w, db := s.history(process), s.pool(url)
	box, err := relay.Open(db, "")
	if err != nil {
		s.t.Fatal(err)
	}
	kafka, err := publisher.NewKafka(s.source.Brokers, publisher.Config{Pin: box.Pin})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = kafka.Close() })
	cfg := relay.Config{
		Lease: 5 * time.Second, ProbeAwake: 5 * time.Millisecond, ClaimEvents: 64, Observer: tap.Relay(w),
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)), DrainTimeout: time.Minute,
	}
	for _, f := range change {
		f(&cfg)
	}
	r, err := relay.New(db, tap.Publisher(w, kafka), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.start(r.Run)
}

func (s *testbed) worker(process, url string) *task {
	s.t.Helper()
	w, db := s.history(process), s.pool(url)
	log := slog.New(slog.NewTextHandler(&s.workers, &slog.HandlerOptions{Level: slog.LevelDebug}))
	in, err := inbox.New(db, name, inbox.Config{Observer: tap.Inbox(w, name), Logger: log})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := consumer.New(tap.Handler(w, name, in.Batch(tap.Effect(w, name))), s.source.Brokers, s.source.Topics,
		consumer.Config{
			Group: s.topic, Batch: 20, HeartbeatInterval: 200 * time.Millisecond, CommitEvery: 20 * time.Millisecond,
			DrainTimeout: time.Second, Logger: log, Observer: tap.Consumer(w, s.topic),
		})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.start(c.Run)
}

// awaitPayments waits until producers have committed that many more events.
func (s *testbed) awaitPayments(more int64) {
	s.t.Helper()
	want := s.payments.Load() + more
	pgtest.Await(s.t, "payments", func() (bool, error) { return s.payments.Load() >= want, nil })
}

// awaitDrained waits until the new primary's outbox is empty, and the worker has read to the end.
func (s *testbed) awaitDrained() {
	s.t.Helper()
	pgtest.AwaitSQL(s.t, s.db, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
	pgtest.Await(s.t, "the worker at the end of the log", func() (bool, error) {
		return s.source.CaughtUp(s.t.Context())
	})
}

// verdict checks the new primary's database, the topic and the histories.
func (s *testbed) verdict(allowed map[history.Name]string) history.Verdict {
	s.t.Helper()
	d, err := s.source.Read(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := history.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	return history.Check(history.Input{Histories: all, Dump: d, Allowed: history.Allowed{Names: allowed}})
}
