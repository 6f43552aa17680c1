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

// Limits of Config.Window. The upper one bounds the number of partitions, for every day of it is one.
const (
	shortWindow = 7 * day
	maxWindow   = 400 * day
)

// Config of an [Inbox]. The zero value is safe: every field has the default that its comment names.
type Config struct {
	// Schema holds the inbox's tables: `^[a-z_][a-z0-9_]{0,62}$`. Empty: the connection's search_path decides, which
	// poolers may lose.
	Schema string

	// Window is how long an id is remembered, rounded up to whole days; default 14 days. It must be longer than the
	// topic's retention in Kafka plus the longest outage that you want to catch up from: an event that is older when it
	// arrives is not applied, because nobody can tell any more whether it was. Below 7 days it needs AllowShortWindow.
	Window time.Duration
	// AllowShortWindow accepts a Window below 7 days (at least one day), and one shorter than the topics' retention, of
	// which a consumer warns.
	AllowShortWindow bool
	// DaysAhead is how many days of partitions are made ahead of time, 1 to 60; default 7. It is also how far in the
	// future the time inside an id may lie, for clocks differ.
	DaysAhead int

	// MaintenanceDB makes and drops days, which needs the role that owns the inbox's tables, or the maintainer's role,
	// which may execute the owner's functions. Default: the db given to New. When no process has such a role, run
	// `relay inbox maintain` from cron.
	MaintenanceDB *pgxpool.Pool
	// MaintainEvery is the time between two passes of Run; default 1 h. Longer than a day, and ids may wait for their
	// day. Negative: Run makes, drops and cleans nothing, for a worker whose role may not and that leaves it to `relay
	// inbox maintain`.
	MaintainEvery time.Duration

	// Dedup is how a repeat is told from a new event; default [ByID]. It is fixed at the consumer's first start:
	// another one is refused, because it knows nothing of what was applied.
	Dedup Dedup

	// Program names what runs the consumer, in all its versions and wherever it runs. Run tells the others of the
	// consumer once a minute, and warns when another program runs it too: the two take events from each other, and each
	// seems to lose some. Default: the path of the main package without a major version. At most 255 bytes.
	Program string

	// OnFailure is what becomes of an event that finally fails, and of one of which nobody can tell whether it was
	// applied; default [ParkKey].
	OnFailure FailurePolicy
	// ParkedPerKey is how many events may wait behind a parked key; default 10,000, negative: any number. At the bound
	// the key's partition halts until the list is shorter. It is counted by Run every 15 s, so a list may grow past it
	// a little.
	ParkedPerKey int
	// CrashAttempts is how many counted runs an event gets that was under way whenever its process was killed;
	// default 10. Then it is parked with [CodeKilled]. Fewer than the kills and rebalances of an ordinary day, and
	// innocent events are parked.
	CrashAttempts int
	// Gate makes a counted run alone in a process that has several inboxes: give all of them one [NewGate]. Default:
	// its own.
	Gate *Gate
	// ReleaseEvery is how often Run looks for events that an operator released; default 1 s, negative: it releases
	// nothing.
	ReleaseEvery time.Duration

	// MaxAttempts is how often an effect runs that keeps failing with an error of no class; default 10, which with the
	// default Backoff is about five minutes. Then OnFailure decides. 1 gives up at once. A session that ends in the
	// effect again, while the database answers, counts as well. What the database rejects (class 42: no such column, no
	// right) for several keys of a type, none of whose effects is applied meanwhile, counts no longer: a deployment is
	// to blame, and its partitions wait. Return [Terminal] for what you know to be an event's fault, such as a
	// row-level security policy that refuses its row (42501): two keys of which that is true look like a deployment.
	MaxAttempts int
	// Backoff is the wait after the first failed attempt; default 200 ms. It grows by 2.3 up to two minutes, with
	// jitter.
	Backoff time.Duration
	// MaxRetryFor is how long an event may answer [Retryable] before OnFailure decides; default 1 h, negative: for
	// ever.
	MaxRetryFor time.Duration

	// LockTimeout bounds each wait for a lock of the transaction, above all for a twin of an event that another process
	// is applying; default 5 s, negative: the session's own. Then the whole transaction runs again.
	LockTimeout time.Duration
	// StatementTimeout bounds each statement of the transaction, the effect's included; default 1 min, negative: the
	// session's own. A cut statement is an error of the effect.
	StatementTimeout time.Duration

	// EffectTimeout bounds the effects of one transaction: their context ends then, which is an error of the one that
	// ran, and a batch is split. Default 5 min, negative: none. The server ends a session that is idle in its
	// transaction for half as long again, unless it has an idle_in_transaction_session_timeout of its own.
	EffectTimeout time.Duration

	// TracerProvider makes a span "process" for each run of an effect, linked to the traces that its events were
	// appended in. What the effect appends continues that span. Nil: no spans.
	TracerProvider trace.TracerProvider
	// Propagator reads the traces of events from their headers; it must be the Appender's. Nil: W3C trace context.
	Propagator propagation.TextMapPropagator

	// Logger logs outages, retries, halts and days. Nil: nothing is logged. Payloads and keys never are.
	Logger *slog.Logger
	// Observer is called at the same points, for metrics.
	Observer Observer
}

// FailurePolicy says what becomes of an event that finally fails.
type FailurePolicy int

const (
	// ParkKey parks the event, and puts every later event of its (tenant, topic, key) behind it, until an operator
	// releases or discards them. Other keys go on. An event without a key is parked alone.
	ParkKey FailurePolicy = iota
	// ParkEvent parks the event alone: later events of its key overtake it. For effects that do not need order.
	ParkEvent
	// Halt stops the partition at the event, with a [HaltError]. Nothing behind it is applied until somebody acts. So
	// does an event that is too old or too far ahead, or that its number does not decide, which the others quarantine.
	Halt
)

// Observer has callbacks for what an inbox does. A nil one is skipped. The goroutines of Handle and Run call them, so
// they must be quick and safe for concurrent use.
type Observer struct {
	// Handled: one transaction decided these events of one partition.
	Handled func(HandledInfo)
	// Retried: a transaction was rolled back and runs again after the wait.
	Retried func(RetriedInfo)
	// Halted: an event halts its partition.
	Halted func(*HaltError)
	// Parked: an event finally failed and is parked. Those that go behind it are only counted in Handled.
	Parked func(ParkedInfo)
	// Released: the run of a released event ended.
	Released func(ReleasedInfo)
	// Maintained: a pass of maintenance ended.
	Maintained func(MaintainedInfo)
}

// HandledInfo counts what one transaction decided.
type HandledInfo struct {
	Topic     string
	Partition int32
	// Parked are those that failed and those that went behind a parked key.
	Applied, Duplicate, Skipped, Parked, Quarantined int
	// Took is from the start of the transaction to the answer to COMMIT.
	Took time.Duration
}

// ParkedInfo says which event was parked and why.
type ParkedInfo struct {
	// Event is the event without its payload, key and headers.
	Event event.Event
	// Code is why in a machine's words: that of [Terminal], or one of this package's codes.
	Code string
	// Attempts is how often its effect ran.
	Attempts int
	Err      error
}

// ReleasedInfo says what became of a released event.
type ReleasedInfo struct {
	// Event is the event without its payload, key and headers.
	Event event.Event
	// Outcome is Applied, Duplicate or Skipped; Parked when it failed again, with Err.
	Outcome Outcome
	Err     error
}

// RetriedInfo says why a transaction runs again. Reason is one of "conflict" (deadlock, lock time-out, serialization),
// "away" (the database), "rejected" (a statement of the inbox or of several keys' effects, by the database),
// "commit unknown", "day missing", "retryable" and "failed" (the effect), "split" and "skip".
type RetriedInfo struct {
	Topic     string
	Partition int32
	Reason    string
	// Attempt counts the failures in a row, from 1.
	Attempt int
	// Wait is how long the next attempt waits.
	Wait time.Duration
	Err  error
}

// MaintainedInfo is the result of one pass of maintenance.
type MaintainedInfo struct {
	// Made and Dropped are the days (UTC, "20060102") whose partitions were made and dropped.
	Made, Dropped []string
	// Cleaned is how many rows of inbox_message_any were deleted.
	Cleaned int64
	// Err is why the pass is incomplete; nil when it is complete.
	Err error
}

// settings is a Config that was checked and filled in.
type settings struct {
	Config
	prefix     string
	windowDays int32
	// Milliseconds as set_config wants them; empty leaves the session's own.
	lockTimeout, statementTimeout, idleTimeout string
}

func (c Config) settings(db *pgxpool.Pool) (settings, error) {
	if c.Window < 0 || c.DaysAhead < 0 || c.DaysAhead > 60 || c.MaxAttempts < 0 || c.Backoff < 0 ||
		c.CrashAttempts < 0 {
		return settings{}, errors.New("inbox: Window, DaysAhead (at most 60), MaxAttempts, CrashAttempts and Backoff " +
			"must not be negative: leave them zero for their defaults")
	}
	if c.OnFailure < ParkKey || c.OnFailure > Halt {
		return settings{}, fmt.Errorf("inbox: OnFailure %d: want ParkKey, ParkEvent or Halt", c.OnFailure)
	}
	if c.Dedup < ByID || c.Dedup > ByOffset {
		return settings{}, fmt.Errorf("inbox: Dedup %d: want ByID, ByWatermark or ByOffset", c.Dedup)
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
		s.Logger = slog.New(slog.DiscardHandler)
	}
	return s, nil
}

func timeoutSetting(d time.Duration) string {
	if d < 0 {
		return ""
	}
	// Rounded up: zero would mean no time-out at all.
	return fmt.Sprintf("%dms", (d+time.Millisecond-1)/time.Millisecond)
}
