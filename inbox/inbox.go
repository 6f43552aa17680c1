package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/callback"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/tracing"
)

// Inbox applies each event once for one consumer. It is safe for concurrent use.
type Inbox struct {
	db       *pgxpool.Pool
	consumer string
	cfg      settings
	log      *slog.Logger
	keeper   *days.Keeper
	gate     *Gate
	tracer   *tracing.Tracer // nil: no spans
	dedup    strategy

	// state is the state that the last transaction read; nil until the consumer is registered and its days exist.
	state atomic.Pointer[state]
	// server is the server of the last transaction that had to ask; nil: none did.
	server atomic.Pointer[server]
	// apart: an effect changes settings of its transaction, so each event has one of its own.
	apart atomic.Bool
	// crowded, drained: it was logged that the pool's last connection is given back, or that others hold all of them.
	// transactions are those that have a connection.
	crowded      atomic.Bool
	drained      atomic.Bool
	transactions atomic.Int32
	// last has one share, for the transaction that waits with the pool's last connection until another is free.
	last *semaphore.Weighted
	// running: Run was called. prepared is when the inbox was prepared; nil: not yet, or the lack of Run is said.
	running  atomic.Bool
	prepared atomic.Pointer[time.Time]
	// preparing is a lock with one slot, for the goroutine that prepares the inbox. It is a channel so that waiting for
	// it can end with a context.
	preparing  chan struct{}
	releasing  sync.Mutex // held while released events are read and run
	outage     outage
	rejections rejections

	programs programs

	handlers struct {
		sync.Mutex
		all     []*handler
		byTopic map[string]*handler // the handler that consumes a topic and can release its events
	}
}

// q returns a statement with the inbox's schema filled in.
func (in *Inbox) q(statement string) string { return pgschema.Expand(statement, in.cfg.prefix) }

// execLate executes a statement even if ctx has ended.
func (in *Inbox) execLate(ctx context.Context, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
	defer cancel()
	_, err := in.db.Exec(ctx, in.q(statement), args...)
	return err
}

// New returns the inbox of a consumer whose tables are in db. It does not connect: [Inbox.Prepare], or the first event,
// registers the consumer and creates its days. Transactions take all connections of db but one (and at least one), and
// other partitions wait.
//
// consumer is the name under which applied events are remembered. All processes that share the consumer's work use the
// same name; under another name every event is applied again. The name is 1 to 255 bytes of text. It is also the
// default Kafka group. The returned error names the invalid field.
func New(db *pgxpool.Pool, consumer string, cfg Config) (*Inbox, error) {
	if db == nil {
		return nil, errors.New("inbox: New needs a *pgxpool.Pool")
	}
	if consumer == "" || len(consumer) > 255 || !utf8.ValidString(consumer) || !event.Storable(consumer) {
		return nil, fmt.Errorf("inbox: consumer name %q: want 1 to 255 bytes of UTF-8 without U+0000", consumer)
	}
	s, err := cfg.settings(db)
	if err != nil {
		return nil, err
	}
	in := &Inbox{
		db: db, consumer: consumer, cfg: s, log: s.Logger.With("consumer", consumer),
		preparing: make(chan struct{}, 1), last: semaphore.NewWeighted(1),
	}
	in.cfg.Observer = callback.Guarded(s.Observer, "Observer", in.log)
	in.outage.log = in.log
	in.programs.host, _ = os.Hostname()
	in.programs.self = fmt.Sprintf("%d %s", os.Getpid(), rand.Text())
	in.programs.said = map[string]bool{}
	in.keeper = newKeeper(s, in.log)
	in.tracer = tracing.New(s.TracerProvider, s.Propagator)
	in.dedup = newStrategy(in)
	if in.gate = s.Gate; in.gate == nil {
		in.gate = NewGate()
	}
	return in, nil
}

// Consumer returns the name given to New.
func (in *Inbox) Consumer() string { return in.consumer }

// Dedup returns the Config.Dedup given to New.
func (in *Inbox) Dedup() Dedup { return in.cfg.Dedup }

// Each returns a handler that runs do for one event at a time, with a batch of events in one transaction. It panics if
// do is nil.
func (in *Inbox) Each(do Effect) Handler {
	if do == nil {
		panic("inbox: Each: the effect is nil")
	}
	return in.handler(eachRunner(in.traced(do, true)))
}

// Batch returns a handler that runs do once for all new events of a batch. It is faster than Each: one statement can
// handle hundreds of events. It panics if do is nil.
func (in *Inbox) Batch(do BatchEffect) Handler {
	if do == nil {
		panic("inbox: Batch: the effect is nil")
	}
	return in.handler(batchRunner(in.tracedBatch(do)))
}

func (in *Inbox) handler(run runner) *handler {
	h := &handler{Inbox: in, run: run, waits: releaseWaits{}}
	in.handlers.Lock()
	defer in.handlers.Unlock()
	in.handlers.all = append(in.handlers.all, h)
	return h
}

// consumes records that h has the effect for a topic's events. It fails if another handler consumes the topic, too: the
// second one would find every event decided.
func (in *Inbox) consumes(topic string, h *handler) error {
	in.handlers.Lock()
	defer in.handlers.Unlock()
	if in.handlers.byTopic == nil {
		in.handlers.byTopic = map[string]*handler{}
	}
	if before := in.handlers.byTopic[topic]; before != nil && before != h && before.assignments.has(topic) {
		return fmt.Errorf("inbox: two handlers of consumer %q consume topic %s: of each event only one effect would "+
			"run; give each an Inbox of its own, with a consumer name of its own", in.consumer, topic)
	}
	in.handlers.byTopic[topic] = h
	return nil
}

// releaser returns the handler that has the effect for a topic's events; nil: no handler of this process has it.
func (in *Inbox) releaser(topic string) *handler {
	in.handlers.Lock()
	defer in.handlers.Unlock()
	if len(in.handlers.all) == 1 {
		return in.handlers.all[0]
	}
	return in.handlers.byTopic[topic]
}

// releasable returns the topics that releaser has a handler for; nil: all topics.
func (in *Inbox) releasable() []string {
	in.handlers.Lock()
	defer in.handlers.Unlock()
	if len(in.handlers.all) == 1 {
		return nil
	}
	return append([]string{}, slices.Collect(maps.Keys(in.handlers.byTopic))...)
}

// Prepare registers the consumer and, with ByID, creates the missing days. The first call fixes the consumer's
// Config.Dedup and its floor: ids of earlier days count as history. A consumer calls Prepare before it consumes; Handle
// also calls it. Prepare fails when tables are missing, when days are missing that db's role may not create, or when
// the consumer is registered with another Dedup. The error says what to do.
func (in *Inbox) Prepare(ctx context.Context) error {
	if in.isRegistered() {
		in.missRun()
		return nil
	}
	return in.exclusive(ctx, func() error {
		if in.isRegistered() {
			return nil
		}
		if err := in.db.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return pgsession.Texts(c.Conn()) }); err != nil {
			return fmt.Errorf("inbox: preparing consumer %q: %w", in.consumer, err)
		}
		if err := in.register(ctx); err != nil {
			return err
		}
		if in.cfg.Dedup == ByID {
			// Altered days hold up their own events only.
			if _, err := in.keeper.Make(ctx, false); err != nil && !errors.Is(err, days.ErrAltered) {
				return err
			}
		}
		now := time.Now()
		in.prepared.Store(&now)
		if err := in.refresh(ctx); err != nil {
			return err
		}
		return in.present(ctx)
	})
}

// isRegistered reports whether the consumer is registered, as the last transaction saw it. A database that was restored
// to a backup from before the first start has lost that.
func (in *Inbox) isRegistered() bool {
	s := in.state.Load()
	return s != nil && s.Floor >= 0
}

// exclusive runs do while no other goroutine of this inbox runs exclusive.
func (in *Inbox) exclusive(ctx context.Context, do func() error) error {
	select {
	case in.preparing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-in.preparing }()
	return do()
}

func (in *Inbox) register(ctx context.Context) error {
	var dedup string
	var known bool
	err := in.db.QueryRow(ctx, in.q(sqlRegister), in.consumer, in.cfg.windowDays,
		in.cfg.Dedup.String(), in.programs.host).Scan(&dedup, &known)
	if err == nil && !known {
		err = errGuard
	}
	if err != nil {
		return advise(fmt.Errorf("inbox: registering consumer %q: %w", in.consumer, err))
	}
	return in.registeredAs(dedupNamed(dedup))
}

// refresh reads the state outside of a writing transaction. The result is good enough only for a plan.
func (in *Inbox) refresh(ctx context.Context) error {
	s, err := stateOf(in.db.QueryRow(ctx, in.q(sql.State), "", "", in.consumer, "", nil))
	if err != nil {
		return fmt.Errorf("inbox: reading the state of consumer %q: %w", in.consumer, err)
	}
	in.state.Store(s)
	return nil
}
