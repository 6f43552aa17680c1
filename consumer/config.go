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

// Start selects the offset at which a partition begins that neither the group nor the handler's database knows. If the
// database knows it, the partition begins where that is: Kafka may have deleted the group's offset. A partition that is
// added to a topic that the group knows begins with its oldest record.
//
// The zero value is StartEarliest, and refuses to begin a topic of which another consumer of the same program
// ([inbox.Config].Program), that began it before this one first started, has decided events: the name may be a typo,
// and under a new one each is applied again.
type Start int

const (
	// StartEarliest begins with the oldest record in the log.
	StartEarliest Start = iota + 1
	// StartLatest begins at the end of the log. The consumer records that offset at once, so that a restart does not
	// skip records produced in between. A topic that does not exist yet when the consumer looks for it begins with its
	// oldest record once it does.
	StartLatest
)

// LostPolicy selects what a partition does when Kafka no longer has the next record: retention removed it unread, or
// the topic was recreated.
type LostPolicy int

const (
	// LostContinue logs the exact missing range as an error, calls Observer.Lost, and continues at the oldest record in
	// the log.
	LostContinue LostPolicy = iota
	// LostHalt reports the range in the same way, and halts the partition until an operator sets the group's offset;
	// with an inbox, its progress too: `relay inbox skip`.
	LostHalt
)

// Config has the settings of a [Consumer]. The zero value of each setting is a safe default. A negative duration
// disables a setting where its comment says so.
type Config struct {
	// Group is the Kafka consumer group. Default: the name that the handler's Consumer method returns, for an inbox its
	// name; required if that name is empty.
	Group string
	// ClientID identifies this process in the broker's logs and quotas. Default: Group.
	ClientID string
	// InstanceID makes this a static member of the group. The name is unique in the group and stays the same over
	// restarts, such as the name of a StatefulSet's pod. A static member that returns within SessionTimeout gets its
	// partitions back without a rebalance. It does not leave the group when it stops, so the partitions of a worker
	// that does not return stand still for SessionTimeout. A second process with the same name replaces the first. The
	// name has at most 249 letters, digits, dots, dashes and underscores. Default: none, a dynamic member.
	InstanceID string
	// IDHeader is the header with the event's id. Default: ce_id. Debezium's outbox router writes "id". Records that
	// have neither are logged where it is set.
	IDHeader string
	// Start selects the first offset of a partition that is new to the group. Set it for a new consumer of a program
	// whose others read the topic already. Default: StartEarliest, where none of them did.
	Start Start
	// OnLost selects what happens when retention removed unread records. Default: LostContinue.
	OnLost LostPolicy
	// ReadUncommitted also delivers records of open and aborted transactions. Default: committed records only.
	ReadUncommitted bool

	// Batch is the maximum number of events of one Handle call. Default: 500.
	Batch int
	// BatchWait is how long a batch that is not full waits for more events. It adds to the latency of a lone event.
	// Default: 5 ms; negative: no wait.
	BatchWait time.Duration
	// CommitEvery is the interval between commits of decided offsets. After a crash, events decided since the last
	// commit are delivered again. Default: 200 ms; negative: after each batch.
	CommitEvery time.Duration
	// DrainTimeout is how long running handlers may continue after the ctx of Run ends; then their ctx ends. An inbox
	// that only waits before it runs an effect again returns at once. Keep it shorter than the supervisor's grace
	// period. Default: 20 s; negative: the handlers' ctx ends at once.
	DrainTimeout time.Duration

	// ResumeEvery is how often a halted partition asks its handler whether an operator resumed it; all partitions ask a
	// quarter as often whether the handler's database was restored. It is also how often the consumer queries the log
	// end of a partition that it does not fetch from. Default: 5 s.
	ResumeEvery time.Duration

	// FetchBytes is the requested size of one fetch of one partition, before decompression. Kafka returns at least one
	// whole batch. Default: 1 MiB.
	FetchBytes int
	// FetchWait is how long the broker holds a fetch that has no records. A shorter wait costs requests; a longer one
	// gains nothing. Default: 500 ms.
	FetchWait time.Duration
	// BufferBytes is the memory that all partitions together may hold ahead of their handlers. Beyond it, a partition
	// that holds nothing may still fetch once. A partition holds at most two fetches. Default: 64 MiB.
	BufferBytes int
	// MaxBatchBytes is the maximum size of one record batch after decompression; a larger batch halts its partition.
	// Each partition may hold one batch of that size beyond BufferBytes; its events are decoded in pieces. Default: 64
	// MiB.
	MaxBatchBytes int

	// SessionTimeout is how long the broker waits for a heartbeat before it assigns the member's partitions to others.
	// The partitions of a process that died stand still for that time. Default: 10 s; 45 s with an InstanceID, because
	// a restart must fit in it.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the broker waits for members to rejoin in a rebalance. Handlers must return within
	// it once their ctx ends. Default: 30 s.
	RebalanceTimeout time.Duration
	// HeartbeatInterval bounds how soon the member notices a rebalance; a partition that moves stands still for about
	// as long. At most a third of SessionTimeout. Default: 500 ms, or that third.
	HeartbeatInterval time.Duration

	// Dial opens connections to brokers. Default: a net.Dialer with a timeout of 5 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS encrypts connections to brokers. Default: no encryption.
	TLS *tls.Config
	// SASL authenticates connections to brokers. Its Start is called for each connection, and may read a password that
	// changes. Default: no authentication.
	SASL sasl.Mechanism

	// Logger gets the consumer's log. Payloads, keys and headers are never logged. Default: slog.Default().
	Logger *slog.Logger
	// Observer has callbacks for metrics and alarms. Default: none.
	Observer Observer
}

// Format prints a Config without the fields of SASL: kafka-go's mechanisms hold the password in a field.
func (cfg Config) Format(f fmt.State, verb rune) {
	type plain Config
	if cfg.SASL != nil {
		cfg.SASL = mechanismName(cfg.SASL.Name())
	}
	_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), plain(cfg))
}

// mechanismName replaces a SASL mechanism in a printed Config.
type mechanismName string

// Name returns the mechanism's name.
func (n mechanismName) Name() string { return string(n) }

// Start returns an error: a printed Config is never used to log in.
func (n mechanismName) Start(context.Context) (sasl.StateMachine, []byte, error) {
	return nil, nil, errors.New("a printed mechanism")
}

// withDefaults returns the config with defaults filled in, or an error that says what to change.
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

// instances matches the instance ids that brokers accept, and the empty one.
var instances = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}$|^$`)

func (cfg Config) check() error {
	for _, c := range []struct {
		ok   bool
		name string
		got  any
		want string
	}{
		{cfg.Start >= 0 && cfg.Start <= StartLatest, "Start", cfg.Start, "StartEarliest or StartLatest"},
		{cfg.OnLost == LostContinue || cfg.OnLost == LostHalt, "OnLost", cfg.OnLost, "LostContinue or LostHalt"},
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
