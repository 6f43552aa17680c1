package relay

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// Lanes is how many lanes an outbox has: 32. A lane is a shard of the outbox, by hash of the key, that one relay sends
// at a time. The number is fixed in the table's DDL.
const Lanes = lanes.Count

// Config sets a relay. The zero value is a safe default for every field.
type Config struct {
	// Schema holds the outbox tables. Empty: the connection's search_path, which a transaction pooler may lose: then
	// name it.
	Schema string
	// Lease is how long a lane stays a relay's without renewal; it is renewed every third of it. After a kill the lanes
	// are idle for up to this long. Default 15 s, at least 1 s. Relays of one outbox must agree on it: one with a
	// shorter lease takes lanes from others that still hold them, which costs duplicates, not order.
	Lease time.Duration
	// Pumps is how many claims a relay works on at a time, each over its own part of the lanes. While one waits for
	// Kafka, the other reads. Default 2, at most 32.
	Pumps int
	// ClaimEvents bounds a claim. Default 8,000 events. Larger costs memory, smaller costs round trips and commits.
	ClaimEvents int
	// ClaimBytes bounds the payloads, headers and texts of a claim. Default 16 MiB. A single larger event is still
	// claimed, alone in its lane. Until a partition that does not answer is held, a pump may have two claims' worth in
	// memory.
	ClaimBytes int
	// ProbeAwake is the pause between two probes for events while there are some, ProbeIdle after IdleAfter without
	// any. Defaults 18 ms, 250 ms and 30 s. They bound the latency of an event without a Wake.
	ProbeAwake, ProbeIdle, IdleAfter time.Duration
	// Sleep is for how long a relay sends no statement to Postgres once no event has come for IdleAfter: for databases
	// that suspend themselves. The relay gives its lanes back and closes its connections until Wake is called, a
	// scheduled event is due, or the time is over. An event without a Wake waits until then, and so do events that an
	// operator releases or resumes, and the lanes of a relay that dies meanwhile. Not with FeedWAL. Default 0: it
	// never sleeps.
	Sleep time.Duration
	// Check is called before the relay takes lanes: when it starts or has slept, and when the outbox's tables or server
	// are others than those of its last answer, as after a restore or a restart. It returns the identity of the outbox
	// that it has found fit ([Waiting.Outbox]): no event of another is claimed. What the WAL brings is published until
	// a heartbeat notices, which takes a third of a lease. Its error ends Run. Nil, or an empty identity: nothing is
	// compared. Once does not call it.
	Check func(ctx context.Context) (outbox string, err error)
	// DrainTimeout bounds how long Run goes on publishing its claims after its context has ended. Default 20 s;
	// negative: not at all. The rest is sent again by the next owner, under the same numbers.
	DrainTimeout time.Duration
	// HoldAfter is how long a partition may leave events without an ack, while others answer, before they are moved to
	// outbox_held. Default 5 s. Lanes without an event for it go on meanwhile, the others wait for so long. Shorter,
	// and every election of a leader moves events to and fro. Negative: never. A topic that is refused as a whole is
	// held at once.
	HoldAfter time.Duration
	// OnFailure chooses the events that are parked when the broker certainly refuses one. Default ParkKey.
	OnFailure FailurePolicy
	// FloorEvery is the least pause between two steps toward higher floors: ids below which a lane has nothing left.
	// Probes and claims begin there, which keeps them fast while a long transaction elsewhere keeps vacuum from
	// removing published rows. Default 250 ms, and an eighth of it while lanes have a backlog. With a longer pause,
	// probes and claims read more dead rows.
	FloorEvery time.Duration
	// RescanEvery is the pause between rescans, which check that no row is below the floors. A rescan reads every dead
	// row, in slices and during at most a tenth of the time, so one may last for minutes. A lane with a backlog is
	// rescanned when it has caught up. With FeedWAL another check looks for rows in the table that the WAL has
	// passed. Default 1 min; negative: never.
	RescanEvery time.Duration
	// ArchiveDays is for how many days published events are kept, in outbox_archive, instead of being deleted: to look
	// at them, or to replay them. It doubles what a settle writes. The relays make and drop the days when their role
	// owns the tables; otherwise run `relay archive maintain` daily. Default 0: published events are deleted.
	ArchiveDays int
	// Feed is where events are read: the table (the default), or the WAL.
	Feed Feed
	// WALHeartbeat is how often a slot that has nothing to send is moved on, with FeedWAL, so that Postgres can
	// remove old WAL beside an idle outbox. Default 10 s, at least 1 s.
	WALHeartbeat time.Duration
	// Name is shown beside the lanes that the relay owns. Default host:pid.
	Name string
	// TracerProvider makes a span "publish" for each claim, linked to the traces that its events were appended in. Nil:
	// no spans.
	TracerProvider trace.TracerProvider
	// Propagator reads the traces of events from their headers; it must be the Appender's. Nil: W3C trace context.
	Propagator propagation.TextMapPropagator
	// Logger gets messages for operators. Default slog.Default().
	Logger *slog.Logger
	// Observer is told of events inside the relay, for metrics and tests.
	Observer Observer
}

// FailurePolicy chooses the events that are parked when one is certainly refused.
type FailurePolicy int

const (
	// ParkKey parks the event's (tenant, topic, key): later events of the key wait behind it, and order holds. An event
	// without a key is parked alone.
	ParkKey FailurePolicy = iota
	// ParkEvent parks the event alone: the key's later events overtake it.
	ParkEvent
)

// Feed says where a relay takes events from.
type Feed int

const (
	// FeedTable reads the table of events, as often as Config.ProbeAwake says.
	FeedTable Feed = iota
	// FeedWAL reads the inserts of producers from the write-ahead log, through a replication slot, as they commit. It
	// needs wal_level = logical, a role with REPLICATION, and the publication that `relay wal setup` makes, or SetUpWAL
	// of package relay/operator. One relay reads; the others stand by. Events that cannot be read or sent this way are
	// published from the table, lane by lane: before there is a slot, after it is lost, and in a lane with held or
	// parked events.
	FeedWAL
)

func (c Config) withDefaults() (Config, error) {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&c.Lease, 15*time.Second)
	def(&c.ProbeAwake, 18*time.Millisecond)
	def(&c.ProbeIdle, 250*time.Millisecond)
	def(&c.IdleAfter, 30*time.Second)
	def(&c.DrainTimeout, 20*time.Second)
	def(&c.HoldAfter, 5*time.Second)
	def(&c.FloorEvery, 250*time.Millisecond)
	def(&c.RescanEvery, time.Minute)
	def(&c.WALHeartbeat, 10*time.Second)
	if c.Pumps == 0 {
		c.Pumps = 2
	}
	if c.ClaimEvents == 0 {
		c.ClaimEvents = 8000
	}
	if c.ClaimBytes == 0 {
		c.ClaimBytes = 16 << 20
	}
	if c.Name == "" {
		host, _ := os.Hostname()
		c.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, c.validate()
}

func (c Config) validate() error {
	switch {
	case c.Lease < time.Second:
		return fmt.Errorf("relay: Lease is %v: at least 1s, or a pause of the process loses every lane", c.Lease)
	case c.Pumps < 1 || c.Pumps > Lanes:
		return fmt.Errorf("relay: Pumps is %d: from 1 to %d", c.Pumps, Lanes)
	case c.ClaimEvents < Lanes || c.ClaimEvents > 100_000:
		return fmt.Errorf("relay: ClaimEvents is %d: from %d to 100000", c.ClaimEvents, Lanes)
	case c.ClaimBytes < 1<<20:
		return fmt.Errorf("relay: ClaimBytes is %d: at least 1 MiB (1048576)", c.ClaimBytes)
	case c.ProbeAwake < time.Millisecond || c.ProbeIdle < c.ProbeAwake:
		return fmt.Errorf("relay: ProbeAwake is %v and ProbeIdle %v: at least 1ms, and idle not shorter than awake",
			c.ProbeAwake, c.ProbeIdle)
	case c.FloorEvery < 0:
		return fmt.Errorf("relay: FloorEvery is %v: must be positive", c.FloorEvery)
	case c.ArchiveDays < 0 || c.ArchiveDays > 3660:
		return fmt.Errorf("relay: ArchiveDays is %d: from 0 (off) to 3660", c.ArchiveDays)
	case c.IdleAfter < 0:
		return fmt.Errorf("relay: IdleAfter is %v: must be positive", c.IdleAfter)
	case c.Sleep > 0 && c.Feed == FeedWAL:
		return fmt.Errorf("relay: Sleep is %v: not with FeedWAL, whose connection keeps the server awake", c.Sleep)
	case c.Feed != FeedTable && c.Feed != FeedWAL:
		return fmt.Errorf("relay: Feed is %d: FeedTable or FeedWAL", c.Feed)
	case c.WALHeartbeat < time.Second:
		return fmt.Errorf("relay: WALHeartbeat is %v: at least 1s", c.WALHeartbeat)
	case c.OnFailure != ParkKey && c.OnFailure != ParkEvent:
		return fmt.Errorf("relay: OnFailure is %d: ParkKey or ParkEvent", c.OnFailure)
	}
	return nil
}
