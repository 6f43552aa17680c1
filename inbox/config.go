package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgschema"
)

const day = 24 * time.Hour

// Limits of Config.Window. The upper limit bounds the number of partitions: each day has one.
const (
	shortWindow = 7 * day
	maxWindow   = 400 * day
)

// Config configures an [Inbox]. The zero value is safe: the comment of each field names its default.
type Config struct {
	// Schema is the schema of the inbox's tables: `^[a-z_][a-z0-9_]{0,62}$`. Empty: the connection's search_path, which
	// a pooler may lose.
	Schema string

	// Window is how long an id is remembered, rounded up to whole days; default 14 days. It must be longer than the
	// topic's retention in Kafka plus the longest outage to catch up from. An event that arrives later than that is not
	// applied, because the inbox can no longer tell whether it was applied before. A Window below 7 days needs
	// AllowShortWindow.
	Window time.Duration
	// AllowShortWindow accepts a Window below 7 days (but not below one day). It also accepts a Window that is shorter
	// than the topics' retention; a consumer warns of it.
	AllowShortWindow bool
	// DaysAhead is how many day partitions are created in advance, 1 to 60; default 7. Because clocks differ, it is
	// also how many days the time of an id may lie in the future.
	DaysAhead int

	// MaintenanceDB is the pool that creates and drops days; default: the db given to New. Its role must own the
	// inbox's tables, or be the maintainer's role, which may execute the owner's functions. If no process has such a
	// role, run `relay inbox maintain` from cron.
	MaintenanceDB *pgxpool.Pool
	// MaintainEvery is the time between two maintenance passes of Run; default 1 h. With more than a day, ids may have
	// to wait for their day. Negative: Run creates, drops and cleans nothing. Use it in a worker whose role lacks the
	// rights, and run `relay inbox maintain`.
	MaintainEvery time.Duration

	// Dedup is how the inbox tells a repeat from a new event; default [ByID]. The consumer's first start fixes it. A
	// process with another Dedup is refused, because its strategy would not know which events were applied.
	Dedup Dedup

	// Program is the name of the program that runs the consumer. All versions and hosts use the same name. Run
	// publishes it every 20 s to the consumer's other processes. It warns when a different program runs the same
	// consumer: the two take events from each other, and each seems to lose some. Default: the path of the main package
	// without a major version. At most 255 bytes.
	Program string

	// OnFailure says what happens to an event that finally fails, and to an event that may already have been applied;
	// default [ParkKey].
	OnFailure FailurePolicy
	// ParkedPerKey is how many events may wait behind a parked key; default 10,000, negative: no limit. At the limit
	// the key's partition halts until the list is shorter. Run counts every 15 s, so a list may grow slightly past the
	// limit.
	ParkedPerKey int
	// CrashAttempts is how many counted runs an event gets if its process dies during each run; default 10. After that
	// the event is parked with [CodeKilled]. A limit below the number of kills and rebalances on an ordinary day parks
	// innocent events.
	CrashAttempts int
	// Gate lets a counted run be alone in a process that has several inboxes: give all of them the same [NewGate].
	// Default: a Gate of its own.
	Gate *Gate
	// ReleaseEvery is how often Run checks for events that an operator released; default 1 s, negative: Run releases
	// nothing.
	ReleaseEvery time.Duration

	// MaxAttempts is how often an effect runs that fails with an unclassified error; default 10, about five minutes
	// with the default Backoff. After that OnFailure decides. 1 gives up after the first failure. A run also counts
	// when its session ends in the effect for the second time in a row while the database answers.
	//
	// If the database rejects the effects of several keys of a type (class 42: missing column, missing right) and
	// applies none of that type in between, further rejections do not count: the inbox assumes a faulty deployment, and
	// the partitions wait. Two bad events with different keys look the same, so return [outcome.Terminal] for errors
	// that are known to be an event's fault, such as a row that a row-level security policy refuses (42501).
	MaxAttempts int
	// Backoff is the wait after the first failed attempt; default 200 ms. Each further wait is 2.3 times longer, up to
	// two minutes, with jitter.
	Backoff time.Duration
	// MaxRetryFor is how long an effect may return [outcome.Retryable] for an event, or lose against other transactions
	// although it is alone in its own, before OnFailure decides; default 1 h, negative: no limit.
	MaxRetryFor time.Duration

	// LockTimeout limits each wait for a lock in the transaction, mainly for another process that is applying the same
	// event; default 5 s, negative: the session's setting. When it expires, the whole transaction runs again.
	LockTimeout time.Duration
	// StatementTimeout limits each statement of the transaction, including the effect's; default 1 min, negative: the
	// session's setting. A statement of the effect that exceeds it is an error of the effect.
	StatementTimeout time.Duration

	// EffectTimeout limits the effects of one transaction; default 5 min, negative: no limit. When it expires, the
	// effects' context ends: the running effect fails if it took most of the time; otherwise transactions have half of
	// the events from then on. The server ends a session that is idle in its transaction for 1.5 times as long, unless
	// the session has its own idle_in_transaction_session_timeout.
	EffectTimeout time.Duration

	// Parallel is how many transactions with events of one partition may run at a time; default 1. It is for effects
	// that are slow, as those that call another system: with 8, a partition with many keys waits for eight at a time.
	// Each transaction has keys of its own, so the events of a key keep their order; those of different keys, and those
	// without a key, have none, as between two partitions. Where effects change the same rows they deadlock, run again,
	// and have transactions of their own for a while. The next batch waits for the slowest, so a long retry still holds
	// up its partition. Each needs a connection, in each partition that the process has, and an effect that uses the
	// pool beside its tx another one: with fewer they wait. New only wants MaxConns above Parallel. It needs ByID,
	// since only ids tell which events are decided out of order, and a policy other than Halt.
	Parallel int

	// TracerProvider creates a "process" span for each run of an effect, linked to the traces in which its events were
	// appended. Events that the effect appends continue that span. Nil: no spans.
	TracerProvider trace.TracerProvider
	// Propagator reads the trace of an event from its headers. It must be the same as the Appender's. Nil: W3C trace
	// context.
	Propagator propagation.TextMapPropagator

	// Logger logs outages, retries, halts and days. It never gets payloads or keys. Default slog.Default().
	Logger *slog.Logger
	// Observer has callbacks for the same occasions, for metrics.
	Observer Observer
}

// FailurePolicy says what happens to an event that finally fails.
type FailurePolicy int

const (
	// ParkKey parks the event and, behind it, every later event of its (tenant, topic, key), until an operator releases
	// or discards them. Events of other keys are not affected. An event without a key is parked alone.
	ParkKey FailurePolicy = iota
	// ParkEvent parks the event alone; later events of its key overtake it. Use it for effects that do not need order.
	ParkEvent
	// Halt stops the partition at the event with a [HaltError]. Nothing after the event is applied until an operator
	// acts. The policy also halts at events that the other policies quarantine: too old, too far in the future, or not
	// decided by their number.
	Halt
)

// Observer has callbacks for the actions of an inbox. Nil callbacks are skipped. The goroutines of Handle and Run call
// them, so callbacks must be fast and safe for concurrent use. The panic of a callback is logged, and ends nothing.
type Observer struct {
	// Handled is called when a transaction decided events of one partition.
	Handled func(HandledInfo)
	// Retried is called when a transaction was rolled back and will run again after a wait.
	Retried func(RetriedInfo)
	// Halted is called when an event halts its partition.
	Halted func(*HaltError)
	// Parked is called when an event finally failed and was parked. The events behind it are counted only in Handled.
	Parked func(ParkedInfo)
	// Released is called when the run of a released event ended.
	Released func(ReleasedInfo)
	// Maintained is called after a maintenance pass.
	Maintained func(MaintainedInfo)
}

// HandledInfo counts the events that one transaction decided, by outcome.
type HandledInfo struct {
	Topic     string
	Partition int32
	// Parked counts the failed events and the events behind a parked key.
	Applied, Duplicate, Skipped, Parked, Quarantined int
	// Took is the time from the start of the transaction to the answer to COMMIT.
	Took time.Duration
}

// ParkedInfo says which event was parked and why.
type ParkedInfo struct {
	// Event is the event without its payload, key and headers.
	Event event.Event
	// Code is the machine-readable cause: the code of [outcome.Terminal], or one of this package's codes.
	Code string
	// Attempts is how often the effect ran.
	Attempts int
	Err      error
}

// ReleasedInfo is the result of running a released event.
type ReleasedInfo struct {
	// Event is the event without its payload, key and headers.
	Event event.Event
	// Outcome is Applied, Duplicate or Skipped; or Parked, with Err, when the event failed again.
	Outcome Outcome
	Err     error
}

// RetriedInfo says why a transaction runs again. Reason is one of "conflict" (deadlock, lock timeout, serialization
// failure), "away" (the database is unreachable), "rejected" (the database rejects a statement of the inbox, or the
// effects of several keys), "commit unknown", "day missing", "retryable", "unknown" and "failed" (the effect), "split"
// and "skip".
type RetriedInfo struct {
	Topic     string
	Partition int32
	Reason    string
	// Attempt counts consecutive failures, from 1.
	Attempt int
	// Wait is the time until the next attempt.
	Wait time.Duration
	Err  error
}

// MaintainedInfo is the result of one maintenance pass.
type MaintainedInfo struct {
	// Made and Dropped are the days (UTC, "20060102") whose partitions were created and dropped.
	Made, Dropped []string
	// Cleaned is the number of rows deleted from inbox_message_any.
	Cleaned int64
	// Err is the reason why the pass is incomplete; nil: it is complete.
	Err error
}

// settings is a validated Config with the defaults filled in.
type settings struct {
	Config
	prefix     string
	windowDays int32
	// Timeouts in the form that set_config takes, such as "5000ms"; empty: the session's setting.
	lockTimeout, statementTimeout, idleTimeout string
}

func (c Config) settings(db *pgxpool.Pool) (settings, error) {
	for name, v := range map[string]int64{
		"Window": int64(c.Window), "DaysAhead": int64(c.DaysAhead), "MaxAttempts": int64(c.MaxAttempts),
		"CrashAttempts": int64(c.CrashAttempts), "Backoff": int64(c.Backoff), "Parallel": int64(c.Parallel),
	} {
		if v < 0 {
			return settings{}, fmt.Errorf("inbox: %s must not be negative: leave it zero for its default", name)
		}
	}
	if c.DaysAhead > 60 {
		return settings{}, fmt.Errorf("inbox: DaysAhead %d: want at most 60", c.DaysAhead)
	}
	if c.OnFailure < ParkKey || c.OnFailure > Halt {
		return settings{}, fmt.Errorf("inbox: OnFailure %d: want ParkKey, ParkEvent or Halt", c.OnFailure)
	}
	if c.Dedup < ByID || c.Dedup > ByOffset {
		return settings{}, fmt.Errorf("inbox: Dedup %d: want ByID, ByWatermark or ByOffset", c.Dedup)
	}
	if err := c.parallel(db); err != nil {
		return settings{}, err
	}
	if c.Gate != nil && c.Gate.room == nil {
		return settings{}, errors.New("inbox: the Gate is not ready: make it with NewGate")
	}
	s := settings{Config: c}
	if s.Program = cmp.Or(c.Program, thisProgram()); len(s.Program) > 255 || !event.Storable(s.Program) {
		return settings{}, fmt.Errorf("inbox: Program %.40q: want at most 255 bytes of UTF-8 without U+0000", s.Program)
	}
	s.Window = cmp.Or(c.Window, 14*day)
	if s.Window > maxWindow {
		return settings{}, fmt.Errorf("inbox: a Window of %v: every day is a partition, want at most %v", s.Window,
			maxWindow)
	}
	if s.Window < shortWindow && !c.AllowShortWindow || s.Window < day {
		return settings{}, fmt.Errorf("inbox: a Window of %v: an event that arrives later than that is not applied, "+
			"so it must be longer than Kafka's retention plus the longest outage; want %v or more, or "+
			"AllowShortWindow and a day or more", s.Window, shortWindow)
	}
	var err error
	if s.prefix, err = pgschema.Prefix(c.Schema); err != nil {
		return settings{}, fmt.Errorf("inbox: %w", err)
	}
	s.windowDays = int32((s.Window + day - 1) / day)
	s.DaysAhead = cmp.Or(c.DaysAhead, 7)
	s.MaintainEvery = cmp.Or(c.MaintainEvery, time.Hour)
	s.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	s.CrashAttempts = cmp.Or(c.CrashAttempts, 10)
	s.ParkedPerKey = cmp.Or(c.ParkedPerKey, 10_000)
	s.ReleaseEvery = cmp.Or(c.ReleaseEvery, time.Second)
	s.Backoff = cmp.Or(c.Backoff, 200*time.Millisecond)
	s.MaxRetryFor = cmp.Or(c.MaxRetryFor, time.Hour)
	s.lockTimeout = timeoutSetting(cmp.Or(c.LockTimeout, 5*time.Second))
	s.statementTimeout = timeoutSetting(cmp.Or(c.StatementTimeout, time.Minute))
	s.EffectTimeout = cmp.Or(c.EffectTimeout, 5*time.Minute)
	s.idleTimeout = timeoutSetting(s.EffectTimeout * 3 / 2)
	if s.MaintenanceDB == nil {
		s.MaintenanceDB = db
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	return s, nil
}

// parallel returns an error if Parallel does not fit the rest of the Config, or the pool.
func (c Config) parallel(db *pgxpool.Pool) error {
	if c.Parallel <= 1 {
		return nil
	}
	most := int(db.Config().MaxConns)
	switch {
	case c.Dedup != ByID:
		return fmt.Errorf("inbox: Parallel %d with Dedup %s: a number decides all events before it, and only ids "+
			"tell which are decided out of order: use ByID, or leave Parallel zero", c.Parallel, c.Dedup)
	case c.OnFailure == Halt:
		return fmt.Errorf("inbox: Parallel %d with OnFailure Halt: nothing after a failed event may be applied, and "+
			"events of other keys would be: use ParkKey, or leave Parallel zero", c.Parallel)
	case c.Parallel >= most:
		return fmt.Errorf("inbox: Parallel %d and a pool of at most %d connections: each transaction takes one, and "+
			"one stays free for effects: raise the pool's MaxConns (pool_max_conns) above Parallel, best "+
			"above Parallel for each partition of the process", c.Parallel, most)
	}
	return nil
}

func timeoutSetting(d time.Duration) string {
	if d < 0 {
		return ""
	}
	// Rounded up, because zero means no timeout.
	return fmt.Sprintf("%dms", (d+time.Millisecond-1)/time.Millisecond)
}
