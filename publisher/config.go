package publisher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

// What Config.Compression may be.
const (
	CompressionNone   = "none"
	CompressionGzip   = "gzip"
	CompressionSnappy = "snappy"
	CompressionLZ4    = "lz4"
	CompressionZstd   = "zstd"
)

// defaultCompression was measured, see docs/decisions/0002-compression.md.
const defaultCompression = CompressionSnappy

// Config tunes a Kafka. The zero value is safe and is what a relay wants. Acks are not in it: they are always "all".
type Config struct {
	// ClientID names this client in the broker's logs and quotas. Default "effectonce".
	ClientID string
	// Compression is the codec of record batches: one of the constants above. Default "snappy".
	Compression string
	// Timeout bounds one request, connecting included; the broker gets half of it for its replicas. After it the
	// outcome is unknown. Too short repeats events that were written. Default 10 s; at least 100 ms.
	Timeout time.Duration
	// BatchBytes bounds the uncompressed records of one request; an event that is larger travels alone. Keep it under
	// the topics' max.message.bytes (Kafka's default is 1,048,588): a batch that is too large is split, which costs a
	// request. Default 1,000,000.
	BatchBytes int
	// RequestBytes is the largest request that the brokers take (their socket.request.max.bytes). A larger one would
	// only end the connection, for ever: an event that needs one is refused here as too large. Default 104,857,600, as
	// Kafka's; at least 2 MiB and BatchBytes.
	RequestBytes int
	// UnknownTopicGrace is how long a topic that the broker does not know counts as "being created" and the verdict as
	// unknown, before it is a refusal. Default 10 s; negative: none.
	UnknownTopicGrace time.Duration
	// RecheckEvery is how long a topic's partition count is believed before metadata and Pin are asked again. Default
	// 30 s. After twice as long nothing is sent by it before they have answered, unless no broker does: accept a count
	// that changed no sooner than that.
	RecheckEvery time.Duration

	// TLS encrypts connections. Nil: plaintext.
	TLS *tls.Config
	// SASL authenticates connections. Its Start is called for each, and may read a password that changes. Nil: none.
	SASL sasl.Mechanism
	// Dial makes network connections. Nil: a dialer with a 3 s time-out and TCP keepalive every 15 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Transport replaces the whole way to the brokers; TLS, SASL, Dial and ClientID are then its own business and must
	// not be set here. If it has a method CloseIdleConnections(), that is called to make it forget stale metadata, and
	// by Close.
	Transport kafka.RoundTripper

	// Pin answers the partition count to use for a topic that has that many now, storing it when the topic is new.
	// cluster is the id of the Kafka cluster, "" from brokers that do not tell: Pin refuses one that is not where the
	// topics are. An error makes the verdicts of that call unknown if the topic is new, has grown or is in another
	// cluster, or a refusal when the error has Rejected() == true. It is called at a topic's first use, every
	// RecheckEvery, after a failure, and at each Publish while the topic is refused; by one goroutine at a time per
	// topic. Nil: the first count seen is kept in memory for the life of the Kafka.
	Pin func(ctx context.Context, cluster, topic string, partitions int) (int, error)

	// Logger gets what an operator should see once: topics refused and well again. Nil: slog.Default().
	Logger *slog.Logger
	// Observer is told about every request.
	Observer Observer
}

// Observer is told what a Kafka does; nil functions are left out. They are called on the sending goroutines, from
// several at a time, and must return quickly.
type Observer struct {
	// Produced: a request was acknowledged. bytes are as sent, compressed; took is the time from sending to the ack.
	Produced func(topic string, partition, events, bytes int, took time.Duration)
	// Failed: a request was not acknowledged; it may be repeated or split at once.
	Failed func(topic string, partition, events int, err error)
}

func (cfg Config) withDefaults() (Config, error) {
	var errs []error
	if cfg.Transport != nil && (cfg.TLS != nil || cfg.SASL != nil || cfg.Dial != nil || cfg.ClientID != "") {
		errs = append(errs, errors.New("set either Transport, or ClientID, TLS, SASL and Dial"))
	}
	if cfg.Compression == "" {
		cfg.Compression = defaultCompression
	}
	if _, err := codecOf(cfg.Compression); err != nil {
		errs = append(errs, err)
	}
	if cfg.ClientID == "" {
		cfg.ClientID = "effectonce"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	} else if cfg.Timeout < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("set Timeout to at least 100ms (or 0 for 10s), not %s", cfg.Timeout))
	}
	if cfg.BatchBytes == 0 {
		cfg.BatchBytes = 1_000_000
	} else if cfg.BatchBytes < 1024 || cfg.BatchBytes > 64<<20 {
		errs = append(errs, fmt.Errorf("set BatchBytes between 1024 and %d (or 0 for 1000000), not %d", 64<<20,
			cfg.BatchBytes))
	}
	if cfg.RequestBytes == 0 {
		cfg.RequestBytes = 100 << 20
	} else if least := max(2<<20, cfg.BatchBytes); cfg.RequestBytes < least {
		errs = append(errs, fmt.Errorf("set RequestBytes to at least %d (or 0 for %d), not %d", least, 100<<20,
			cfg.RequestBytes))
	}
	if cfg.UnknownTopicGrace == 0 {
		cfg.UnknownTopicGrace = 10 * time.Second
	}
	if cfg.RecheckEvery == 0 {
		cfg.RecheckEvery = 30 * time.Second
	} else if cfg.RecheckEvery < 0 {
		errs = append(errs, fmt.Errorf("set RecheckEvery to a positive time (or 0 for 30s), not %s", cfg.RecheckEvery))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return cfg, errors.Join(errs...)
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

// codecOf translates a name to kafka-go's number.
func codecOf(name string) (kafka.Compression, error) {
	switch name {
	case CompressionNone:
		return 0, nil
	case CompressionGzip:
		return kafka.Gzip, nil
	case CompressionSnappy:
		return kafka.Snappy, nil
	case CompressionLZ4:
		return kafka.Lz4, nil
	case CompressionZstd:
		return kafka.Zstd, nil
	}
	return 0, fmt.Errorf("set Compression to none, gzip, snappy, lz4 or zstd, not %q", name)
}
