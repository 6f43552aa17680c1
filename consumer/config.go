package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"time"

	"github.com/segmentio/kafka-go/sasl"
)

// Start says where a partition begins for which the group has no offset.
type Start int

const (
	// StartEarliest begins with the oldest record that Kafka still has.
	StartEarliest Start = iota
	// StartLatest begins with what is produced after the group first sees the partition. That place is committed at
	// once, so that a restart does not skip what came in between. A handler whose database has decided some of the
	// partition goes on behind that, also when Kafka has forgotten the group's offset.
	StartLatest
)

// LostPolicy says what to do when Kafka no longer has the record that comes next: retention removed it unread, or the
// topic was made again.
type LostPolicy int

const (
	// LostContinue logs the exact range that is gone as an error, calls Observer.Lost, and goes on at the oldest record
	// there is.
	LostContinue LostPolicy = iota
	// LostHalt logs the same and halts the partition until somebody sets the group's offset.
	LostHalt
)

// BehindPolicy says what to do when the group has committed more than the handler's database knows of.
type BehindPolicy int

const (
	// BehindRepeat reads again from where the database is. What it knows by id is a duplicate, and the rest is applied,
	// and said: the database was restored from a backup, or somebody moved the group's offset.
	BehindRepeat BehindPolicy = iota
	// BehindIgnore goes on at the group's offset. For a group whose offset was moved forward on purpose, to leave
	// events out.
	BehindIgnore
)

// Config has the settings of a [Consumer]. The zero value of each is a safe default; negative durations switch a thing
// off where that is said.
type Config struct {
	// Group is the Kafka consumer group. Default: the handler's Consumer, which is the inbox's name; required where
	// that is empty.
	Group string
	// ClientID names this process in the broker's logs and quotas. Default: Group.
	ClientID string
	// InstanceID makes this a static member of the group, with a name that no other worker of the group has and that
	// it keeps over its restarts: a pod's of a StatefulSet, say. One that comes back within SessionTimeout has its
	// partitions again, and the others notice nothing. In return it does not leave when it stops: the partitions of a
	// worker that is gone for good stand still for SessionTimeout. A second process with the name takes the first
	// one's place. Letters, digits, dots, dashes and underscores, 249 at most. Default: none, a member like any other.
	InstanceID string
	// IDHeader is the header that carries an event's id. Default: ce_id. Debezium's outbox router writes "id".
	IDHeader string
	// Start is where a partition without a committed offset begins. Default: StartEarliest.
	Start Start
	// OnLost is what to do when retention removed unread records. Default: LostContinue.
	OnLost LostPolicy
	// OnBehind is what to do when the handler's database is behind the group's offset. Default: BehindRepeat.
	OnBehind BehindPolicy
	// ReadUncommitted delivers records of open and aborted transactions, too. Default: committed ones only.
	ReadUncommitted bool

	// Batch is the most events that one Handle gets. Default: 500.
	Batch int
	// BatchWait is how long an unfilled batch waits for more. It is added to the latency of a lone event. Default: 5
	// ms; negative: not at all.
	BatchWait time.Duration
	// CommitEvery is how often decided offsets are committed; a crash repeats what was decided since the last time.
	// Default: 200 ms; negative: after each batch.
	CommitEvery time.Duration
	// DrainTimeout is how long Run lets running handlers finish after its ctx ended, before their ctx ends. Keep it
	// below the time that the supervisor grants. Default: 20 s; negative: they are cancelled at once.
	DrainTimeout time.Duration

	// ResumeEvery is how often a halted partition asks its handler whether an operator let it go on, and how often the
	// end of a log is looked at that is not fetched meanwhile. Default: 5 s.
	ResumeEvery time.Duration

	// FetchBytes is what one fetch of one partition asks for, before decompression. Kafka answers with at least one
	// whole batch. Default: 1 MiB.
	FetchBytes int
	// FetchWait is how long the broker holds an empty fetch. Shorter costs requests, longer gains nothing. Default: 500
	// ms.
	FetchWait time.Duration
	// BufferBytes is what all partitions together may hold ahead of their handlers. Beyond it a partition still has the
	// one fetch that it is working on. Each partition holds at most two. Default: 64 MiB.
	BufferBytes int
	// MaxBatchBytes is the most that one record batch may have after decompression; a larger one halts its partition.
	// Each partition may hold one batch of that size beyond BufferBytes; its events are made piece by piece. Default:
	// 64 MiB.
	MaxBatchBytes int

	// SessionTimeout is how long the broker waits for a heartbeat before it gives the partitions to others: those of a
	// process that died stand still for so long. Default: 10 s; 45 s with an InstanceID, as a restart must fit in it.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the broker waits for members to come back in a rebalance: the time that handlers
	// have to return once their ctx ended. Default: 30 s.
	RebalanceTimeout time.Duration
	// HeartbeatInterval is how soon a rebalance is noticed: a partition that moves stands still for about as long. At
	// most a third of SessionTimeout. Default: 500 ms, or that third.
	HeartbeatInterval time.Duration

	// Dial opens connections to brokers. Default: a net.Dialer with a time-out of 5 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS encrypts them. Default: no encryption.
	TLS *tls.Config
	// SASL authenticates them. Its Start is called for each, and may read a password that changes. Default: no
	// authentication.
	SASL sasl.Mechanism

	// Logger gets what people must know; payloads, keys and headers never appear. Default: slog.Default().
	Logger *slog.Logger
	// Observer has callbacks for what happens. Default: none.
	Observer Observer
}

// Format prints a Config without what SASL holds: kafka-go's own mechanisms have the password in a field.
func (cfg Config) Format(f fmt.State, verb rune) {
	type plain Config
	if cfg.SASL != nil {
		cfg.SASL = mechanismName(cfg.SASL.Name())
	}
	_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), plain(cfg))
}

// mechanismName stands for a mechanism where a Config is printed.
type mechanismName string

// Name is the mechanism's.
func (n mechanismName) Name() string { return string(n) }

// Start is never called: nobody logs in with what is printed.
func (n mechanismName) Start(context.Context) (sasl.StateMachine, []byte, error) {
	return nil, nil, errors.New("a printed mechanism")
}

// withDefaults returns the config that holds, or an error that says what to change.
func (cfg Config) withDefaults() (Config, error) {
	if cfg.Group == "" {
		return cfg, errors.New("consumer: no group: set Config.Group to the consumer's name")
	}
	orDefault(&cfg.ClientID, cfg.Group)
	orDefault(&cfg.Batch, 500)
	orDefault(&cfg.BatchWait, 5*time.Millisecond)
	orDefault(&cfg.CommitEvery, 200*time.Millisecond)
	orDefault(&cfg.DrainTimeout, 20*time.Second)
	orDefault(&cfg.ResumeEvery, 5*time.Second)
	orDefault(&cfg.FetchBytes, 1<<20)
	orDefault(&cfg.FetchWait, 500*time.Millisecond)
	orDefault(&cfg.BufferBytes, 64<<20)
	orDefault(&cfg.MaxBatchBytes, 64<<20)
	if cfg.InstanceID != "" {
		orDefault(&cfg.SessionTimeout, 45*time.Second)
	}
	orDefault(&cfg.SessionTimeout, 10*time.Second)
	orDefault(&cfg.RebalanceTimeout, 30*time.Second)
	orDefault(&cfg.HeartbeatInterval, min(500*time.Millisecond, cfg.SessionTimeout/3))
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: netTimeout}).DialContext
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return cfg, cfg.check()
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// instances are the names that brokers accept.
var instances = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}$|^$`)

func (cfg Config) check() error {
	for _, c := range []struct {
		ok   bool
		name string
		got  any
		want string
	}{
		{cfg.Start == StartEarliest || cfg.Start == StartLatest, "Start", cfg.Start, "StartEarliest or StartLatest"},
		{cfg.OnLost == LostContinue || cfg.OnLost == LostHalt, "OnLost", cfg.OnLost, "LostContinue or LostHalt"},
		{
			cfg.OnBehind == BehindRepeat || cfg.OnBehind == BehindIgnore, "OnBehind", cfg.OnBehind,
			"BehindRepeat or BehindIgnore",
		},
		{
			instances.MatchString(cfg.InstanceID), "InstanceID", cfg.InstanceID,
			"at most 249 letters, digits, dots, dashes and underscores",
		},
		{cfg.Batch > 0, "Batch", cfg.Batch, "at least 1"},
		{cfg.ResumeEvery > 0, "ResumeEvery", cfg.ResumeEvery, "more than zero"},
		{
			cfg.FetchBytes >= minFetchBytes && cfg.FetchBytes <= 512<<20, "FetchBytes", cfg.FetchBytes,
			"between 16 KiB and 512 MiB",
		},
		{
			cfg.FetchWait >= time.Millisecond && cfg.FetchWait <= time.Minute, "FetchWait", cfg.FetchWait,
			"between 1 ms and 1 minute",
		},
		{cfg.BufferBytes >= cfg.FetchBytes, "BufferBytes", cfg.BufferBytes, "at least FetchBytes"},
		{
			cfg.MaxBatchBytes >= 1<<20 && cfg.MaxBatchBytes <= 1<<30, "MaxBatchBytes", cfg.MaxBatchBytes,
			"between 1 MiB and 1 GiB",
		},
		{cfg.SessionTimeout >= time.Second, "SessionTimeout", cfg.SessionTimeout, "at least 1 s (the broker's own " +
			"minimum is 6 s unless it was changed)"},
		{cfg.RebalanceTimeout >= time.Second, "RebalanceTimeout", cfg.RebalanceTimeout, "at least 1 s"},
		{
			cfg.HeartbeatInterval >= 10*time.Millisecond && cfg.HeartbeatInterval <= cfg.SessionTimeout/3,
			"HeartbeatInterval", cfg.HeartbeatInterval, "at least 10 ms and at most a third of SessionTimeout",
		},
	} {
		if !c.ok {
			return fmt.Errorf("consumer: Config.%s is %v: it must be %s", c.name, c.got, c.want)
		}
	}
	return nil
}
