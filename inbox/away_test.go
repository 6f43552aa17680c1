package inbox_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// small sets few days and short waits.
func small(cfg inbox.Config) inbox.Config {
	cfg.Window, cfg.AllowShortWindow, cfg.DaysAhead, cfg.Backoff = 24*time.Hour, true, 1, time.Millisecond
	return cfg
}

func newInbox(t testing.TB, db *pgxpool.Pool, consumer string, cfg inbox.Config) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(db, consumer, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestP9_3_CommitUnknown: the connection is lost before, during or after COMMIT. The effect is committed once.
func TestP9_3_CommitUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action pgtest.Action
		want   inbox.Outcome // of the next run
	}{
		"never sent":  {pgtest.CutBefore, inbox.Applied},
		"reply lost":  {pgtest.DropReply, inbox.Duplicate},
		"cut behind":  {pgtest.CutAfter, inbox.Undecided},
		"sent later":  {pgtest.Late, inbox.Duplicate},
		"sent later2": {pgtest.Late, inbox.Duplicate},
	} {
		for _, dedup := range []inbox.Dedup{inbox.ByID, inbox.ByWatermark} {
			t.Run(name+" "+dedup.String(), func(t *testing.T) {
				t.Parallel()
				w, r := newWorld(t), &retries{}
				proxy := pgtest.NewProxy(t, w.URL)
				observer := r.observer()
				var trap *pgtest.Trap
				var released sync.Once
				told := observer.Retried
				observer.Retried = func(i inbox.RetriedInfo) {
					told(i)
					// The second run waits for the first one's rows, and now the first one's COMMIT arrives.
					if i.Reason == "conflict" {
						released.Do(trap.Release)
					}
				}
				// Creates the days, which may take longer than the lock time-out below.
				if err := w.inbox(inbox.Config{Dedup: dedup}).Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				in := newInbox(t, pool(t, proxy.URL()), "ledger",
					small(inbox.Config{Dedup: dedup, Observer: observer, LockTimeout: 20 * time.Millisecond}))
				if err := in.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				runs, events := 0, number(some(10), epochOne, 1)
				trap = proxy.OnCommit(c.action)
				out := handle(t, in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
					runs++
					return writeAll(ctx, tx, events)
				}), events)
				<-trap.Fired()
				same(t, "effects", w.effects(), ids(events))
				if c.want != inbox.Undecided {
					same(t, "outcomes", out, repeat(c.want, 10))
				}
				if r.count("commit unknown") != 1 {
					t.Errorf("retries %v", r.list)
				}
				if c.action == pgtest.Late && (r.count("conflict") == 0 || runs != 1) {
					t.Errorf("the second run did not wait for the first: %d runs, retries %v", runs, r.list)
				}
			})
		}
	}
}

func TestP9_3_DatabaseAwayAndBack(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	db := server.Database(t, "inbox")
	db.Exec(t, "create table effect (n bigint generated always as identity, id uuid not null, what text not null "+
		"default '')")
	var log syncBuilder
	waiting, back := make(chan struct{}, 10000), make(chan struct{})
	in := newInbox(t, db.Pool, "ledger", small(inbox.Config{
		MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(&log, nil)), Observer: inbox.Observer{
			// None of them is in the middle of an attempt when the server starts: it would be another outage.
			Retried: func(i inbox.RetriedInfo) {
				if i.Attempt >= 2 {
					waiting <- struct{}{}
					<-back
				}
			},
		},
	}))
	w, first, stop, events := &world{db, t}, some(1), some(1), some(2)
	first[0].Type, stop[0].Type = "First", "Stop"
	inEffect, go_ := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.Type == "Stop" {
			once.Do(func() { close(inEffect); <-go_ })
		}
		return write(ctx, tx, e)
	})
	handle(t, h, first)
	var wg sync.WaitGroup
	wg.Go(func() { same(t, "outcomes", handle(t, h, stop), repeat(inbox.Applied, 1)) })
	<-inEffect
	server.StopImmediate()
	for range 3 { // other partitions in the same outage
		wg.Go(func() { _, _ = h.Handle(t.Context(), events) })
	}
	close(go_)
	for range 4 {
		<-waiting
	}
	server.Start(t)
	db.Pool.Reset() // idle connections are broken
	close(back)
	wg.Wait()
	if got := len(w.effects()); got != 4 {
		t.Errorf("%d effects, want 4", got)
	}
	if down, up := strings.Count(log.String(), "does not answer"),
		strings.Count(log.String(), "answers again"); down != 1 || up != 1 {
		t.Errorf("%d log lines that the database is away and %d that it is back:\n%s", down, up, &log)
	}
}

// syncBuilder is a strings.Builder for several goroutines.
type syncBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuilder) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuilder) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestFirstContactWhileAway(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), &retries{}
	proxy := pgtest.NewProxy(t, w.URL)
	proxy.Refuse(true)
	observer := r.observer()
	told := observer.Retried
	observer.Retried = func(i inbox.RetriedInfo) {
		if told(i); r.count("away") == 3 {
			proxy.Refuse(false)
		}
	}
	in := newInbox(t, pool(t, proxy.URL()), "ledger", small(inbox.Config{Observer: observer}))
	same(t, "outcomes", handle(t, in.Each(write), some(3)), repeat(inbox.Applied, 3))
}

// TestTheUniqueKeyHoldsBack: a second run of an event waits for the key of the first, and is then a duplicate. Without
// the key nothing is decided: TestP9_3_MissingKeysDecideNothing.
func TestTheUniqueKeyHoldsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in, events := w.inbox(inbox.Config{}), some(1)
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	var inside, wg sync.WaitGroup
	inside.Add(1)
	conflict := make(chan uint32, 1)
	wg.Go(func() {
		handle(t, in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			inside.Done()
			<-conflict
			return write(ctx, tx, e)
		}), events)
	})
	inside.Wait()
	blocked := newInbox(t, w.Pool, "ledger",
		small(inbox.Config{LockTimeout: 10 * time.Millisecond, Observer: inbox.Observer{
			Retried: func(inbox.RetriedInfo) {
				select {
				case conflict <- 1: // the second waits for the key: the first may commit
				default:
				}
			},
		}}))
	same(t, "the second", handle(t, blocked.Each(write), events), repeat(inbox.Duplicate, 1))
	wg.Wait()
	same(t, "effects", w.effects(), ids(events))
}

// TestSessionDefaults: settings of the database, the role or the pooler do not change the guarantee.
func TestSessionDefaults(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pgxpool.Config){
		"repeatable read": func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
		},
		"serializable": func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		},
		"time zone":   func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["timezone"] = "Pacific/Kiritimati" },
		"not durable": func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" },
		"exec":        func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec },
		"simple protocol": func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		},
		"cache describe": func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		},
		"describe exec": func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
		},
		"one connection": func(c *pgxpool.Config) { c.MaxConns = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg, err := pgxpool.ParseConfig(w.URL)
			if err != nil {
				t.Fatal(err)
			}
			change(cfg)
			db, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(db.Close)
			var isolation, durable, lock, statement string
			events := some(20)
			events[4].ID = event.ForeignID("shop", "1")
			in := newInbox(t, db, "ledger", small(inbox.Config{
				Schema: w.Schema, LockTimeout: 12345 * time.Millisecond, StatementTimeout: 54321 * time.Millisecond,
			}))
			h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if err := write(ctx, tx, e); err != nil {
					return err
				}
				return tx.QueryRow(ctx, "select current_setting('transaction_isolation'), "+
					"current_setting('synchronous_commit'), current_setting('lock_timeout'), "+
					"current_setting('statement_timeout')").Scan(&isolation, &durable, &lock, &statement)
			})
			same(t, "outcomes", handle(t, h, events), repeat(inbox.Applied, 20))
			same(t, "again", handle(t, h, events), repeat(inbox.Duplicate, 20))
			same(t, "effects", w.effects(), ids(events))
			if isolation != "read committed" || durable != "on" || lock != "12345ms" || statement != "54321ms" {
				t.Errorf("the effect ran %s, synchronous_commit %s, lock_timeout %s, statement_timeout %s", isolation,
					durable, lock, statement)
			}
			if err := in.Maintain(t.Context()); err != nil {
				t.Error(err)
			}
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			if err := conn.QueryRow(t.Context(), "select current_setting('lock_timeout')").Scan(&lock); err != nil ||
				lock != "0" {
				t.Errorf("lock_timeout %s stays on the connection (%v)", lock, err)
			}
		})
	}
}

// TestBytesInAnyForm: with bytea_output escape, and in the query modes that poolers need, a key is parked, holds its
// later events, and is released with the bytes that were read.
func TestBytesInAnyForm(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg, err := pgxpool.ParseConfig(w.URL)
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.RuntimeParams["bytea_output"] = "escape"
			cfg.ConnConfig.DefaultQueryExecMode = mode
			db, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(db.Close)
			e := keyed("a\x00\xff\\", "a\x00\xff\\", "b", "a\x00\xff\\")
			e[0].Payload, e[1].Payload, e[3].Payload = []byte("\x00\\x\xfe"), []byte{}, nil
			in := newInbox(t, db, "ledger", small(inbox.Config{Schema: w.Schema}))
			var failing atomic.Bool
			failing.Store(true)
			got := map[uuid.UUID]event.Event{}
			h := in.Each(func(ctx context.Context, tx pgx.Tx, one event.Event) error {
				var output string
				if err := tx.QueryRow(ctx, "select current_setting('bytea_output')").Scan(&output); err != nil {
					return err
				}
				if output != "escape" {
					return fmt.Errorf("bytea_output is %s in the effect", output)
				}
				if failing.Load() && one.ID == e[0].ID {
					return outcome.Terminal("x", errBad)
				}
				got[one.ID] = one
				return write(ctx, tx, one)
			})
			same(t, "outcomes", handle(t, h, e[:1]), repeat(inbox.Parked, 1))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // it would wait for an operator
			defer cancel()
			out, err := h.Handle(ctx, e[1:])
			if err != nil {
				t.Fatal(err)
			}
			same(t, "outcomes", out, []inbox.Outcome{inbox.Parked, inbox.Applied, inbox.Parked})
			failing.Store(false)
			w.releaseKey(e[0].Key, 3)
			if err := inbox.ReleaseOnce(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			same(t, "effects", w.effects(), []uuid.UUID{e[2].ID, e[0].ID, e[1].ID, e[3].ID})
			for _, want := range e {
				if one := got[want.ID]; one.Key != want.Key || !bytes.Equal(one.Payload, want.Payload) ||
					(one.Payload == nil) != (want.Payload == nil) {
					t.Errorf("the effect got %q of %q, want %q of %q", one.Payload, one.Key, want.Payload, want.Key)
				}
			}
		})
	}
}

// TestP9_3_EffectsCommitDurably: an effect that turns synchronous_commit off, itself or in a function, takes nothing
// from the COMMIT of its batch, nor from that of a release. Otherwise a crash of the database would undo effects whose
// offsets are committed in Kafka.
func TestP9_3_EffectsCommitDurably(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, `create table committed (durable text not null)`)
	w.Exec(t, `create function committing() returns trigger language plpgsql as $$ begin
		insert into committed values (current_setting('synchronous_commit')); return null; end $$`)
	w.Exec(t, `create constraint trigger committing after insert on effect deferrable initially deferred
		for each row execute function committing()`)
	w.Exec(t, `create function fast() returns void language sql as $$ set local synchronous_commit = off $$`)
	events := some(3)
	failing := atomic.Bool{}
	failing.Store(true)
	in := w.inbox(inbox.Config{})
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		fast := []string{"select", "set local synchronous_commit = off", "select fast()"}[e.Position.Offset]
		if _, err := tx.Exec(ctx, fast); err != nil {
			return err
		}
		if e.Position.Offset == 2 && failing.Load() {
			return outcome.Terminal("x", errBad)
		}
		return write(ctx, tx, e)
	})
	same(t, "outcomes", handle(t, h, events), []inbox.Outcome{inbox.Applied, inbox.Applied, inbox.Parked})
	failing.Store(false)
	w.releaseKey("k", 1)
	if err := inbox.ReleaseOnce(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	same(t, "effects", w.effects(), ids(events))
	if n := pgtest.One[int](t, w.DB, "select count(*) from committed where durable = 'on'"); n != 3 {
		t.Errorf("%d of 3 effects were committed with synchronous_commit on", n)
	}
}

// TestEffectReadsThroughThePool: there are more partitions than connections, and each effect takes another connection
// while its transaction has one. Two inboxes share the pool, with one Gate, or with a Gate each.
func TestEffectReadsThroughThePool(t *testing.T) {
	t.Parallel()
	shared := inbox.NewGate()
	for name, gate := range map[string]*inbox.Gate{"one gate": shared, "a gate each": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg, err := pgxpool.ParseConfig(w.URL)
			if err != nil {
				t.Fatal(err)
			}
			cfg.MaxConns = 3
			db, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(db.Close)
			var effects atomic.Int32
			var running sync.WaitGroup
			for _, consumer := range []string{"ledger", "email"} {
				in := newInbox(t, db, consumer, small(inbox.Config{Schema: w.Schema, Gate: gate, EffectTimeout: -1}))
				h := in.Each(func(ctx context.Context, _ pgx.Tx, _ event.Event) error {
					defer effects.Add(-1)
					if n := effects.Add(1); n == cfg.MaxConns {
						return outcome.Terminal("stuck", fmt.Errorf("%d effects wait for a connection, and have all",
							n))
					}
					var one int
					return db.QueryRow(ctx, "select 1").Scan(&one)
				})
				for partition := range int32(8) {
					events := some(5)
					for i := range events {
						events[i].Position.Partition = partition
					}
					running.Go(func() {
						out, err := h.Handle(t.Context(), events)
						if err != nil {
							t.Error(err)
						}
						same(t, "outcomes", out, repeat(inbox.Applied, 5))
					})
				}
			}
			running.Wait()
		})
	}
}

// TestOneWaitsWithTheLastConnection: inboxes with a Gate each share a pool. Of the transactions that find only its last
// connection, one takes it again and again: if all did, effects that read through the pool would hardly get it.
func TestOneWaitsWithTheLastConnection(t *testing.T) {
	t.Parallel()
	type waiter struct{}
	w := newWorld(t)
	cfg, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	var taken [8]atomic.Int32
	cfg.MaxConns = int32(len(taken) + 2)
	cfg.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
		if n, ok := ctx.Value(waiter{}).(int); ok {
			taken[n].Add(1)
		}
		return true, nil
	}
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	of := func(partition int, e event.Event) []event.Event {
		e.Position.Partition = int32(partition)
		return []event.Event{e}
	}
	events := some(2)
	h := newInbox(t, db, "ledger", small(inbox.Config{Schema: w.Schema})).Each(write)
	for n := range taken {
		handle(t, h, of(n, events[0])) // what follows needs nothing but its transaction
		events[0].ID = event.NewID()
	}
	var others []*pgxpool.Conn
	for range cfg.MaxConns - 1 {
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, conn)
	}
	var running sync.WaitGroup
	for n := range taken {
		waiting := context.WithValue(t.Context(), waiter{}, n)
		e := events[1]
		e.ID = event.NewID()
		running.Go(func() {
			out, err := h.Handle(waiting, of(n, e))
			if err != nil {
				t.Error(err)
			}
			same(t, "outcomes", out, repeat(inbox.Applied, 1))
		})
	}
	pgtest.Await(t, "the last connection to be taken again and again", func() (bool, error) {
		most := int32(0)
		for i := range taken {
			most = max(most, taken[i].Load())
		}
		return most > 3, nil
	})
	again := 0
	for i := range taken {
		if taken[i].Load() > 1 {
			again++
		}
	}
	if again != 1 {
		t.Errorf("%d transactions take the pool's last connection by turns", again)
	}
	for _, conn := range others {
		conn.Release()
	}
	running.Wait()
}

// TestStarvedEffectNamesThePool: an effect waits for a connection that its own transaction has. The timeout says so.
func TestStarvedEffectNamesThePool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for name, effect := range map[string]func(context.Context) error{
		"through the pool": func(ctx context.Context) error {
			var one int
			return db.QueryRow(ctx, "select 1").Scan(&one)
		},
		"slow": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		var cause error
		in := newInbox(t, db, name, small(inbox.Config{
			Schema: w.Schema, MaxAttempts: 1, EffectTimeout: 100 * time.Millisecond,
			Observer: inbox.Observer{Parked: func(p inbox.ParkedInfo) { cause = p.Err }},
		}))
		h := in.Each(func(ctx context.Context, _ pgx.Tx, _ event.Event) error { return effect(ctx) })
		same(t, "outcomes", handle(t, h, some(1)), repeat(inbox.Parked, 1))
		const want = "in vain for a connection of the inbox's pool, which has at most 1"
		if named := strings.Contains(cause.Error(), want); named != (name == "through the pool") {
			t.Errorf("%s: %v", name, cause)
		}
	}
}

// TestLeakedConnectionsAreSaid: effects have taken all connections of the pool, and never give them back.
func TestLeakedConnectionsAreSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := pgtest.Pool(t, w.URL+"&pool_max_conns=2")
	var said syncBuilder
	in := newInbox(t, db, "ledger", small(inbox.Config{
		Schema: w.Schema, Logger: slog.New(slog.NewTextHandler(&said, nil)),
	}))
	h := in.Each(func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip })
	handle(t, h, some(1))
	var held []*pgxpool.Conn
	for range 2 {
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	var running sync.WaitGroup
	running.Go(func() { same(t, "outcomes", handle(t, h, some(1)), repeat(inbox.Skipped, 1)) })
	pgtest.Await(t, "the log", func() (bool, error) {
		return strings.Contains(said.String(), "hold all connections of the pool"), nil
	})
	for _, conn := range held {
		conn.Release()
	}
	running.Wait()
}
