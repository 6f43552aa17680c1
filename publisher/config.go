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

// The values of Config.Compression.
const (
	CompressionNone   = "none"
	CompressionGzip   = "gzip"
	CompressionSnappy = "snappy"
	CompressionLZ4    = "lz4"
	CompressionZstd   = "zstd"
)

// defaultCompression is explained in docs/decisions/0002-compression.md.
const defaultCompression = CompressionSnappy

// Config tunes a Kafka. The zero value is safe and suits a relay. Acks cannot be set: they are always "all".
type Config struct {
	// ClientID names this client in the broker's logs and quotas. Default "effectonce".
	ClientID string
	// Compression is the codec of record batches: one of the constants above. Default "snappy". KafkaJS reads gzip and
	// none, and the others only with a codec that is registered with it.
	Compression string
	// Timeout bounds one request, connecting included; the broker gets half of it for its replicas. After it the
	// outcome is unknown. A Timeout that is too short repeats events that were written. Default 10 s; at least 100 ms.
	Timeout time.Duration
	// BatchBytes bounds the uncompressed records of one request; a larger event is sent alone. Keep it under the
	// topics' max.message.bytes (Kafka's default is 1,048,588): a batch that is too large is split, which costs a
	// request. Default 1,000,000.
	BatchBytes int
	// RequestBytes is the largest request that the brokers accept (their socket.request.max.bytes). They close the
	// connection at a larger one, so an event that needs one is refused as too large. Default 104,857,600, as Kafka's;
	// at least 2 MiB and BatchBytes.
	RequestBytes int
	// RecheckEvery is how long a topic's partition count is used before metadata and Pin are asked again. Default 30 s.
	// A count that is twice as old is not used until they have answered, unless no broker answers. Accept a changed
	// count only after that time.
	RecheckEvery time.Duration

	// TLS encrypts connections. Nil: plaintext.
	TLS *tls.Config
	// SASL authenticates connections. Its Start is called for each connection and may read a rotated password. Nil:
	// none.
	SASL sasl.Mechanism
	// Dial makes network connections. Nil: a dialer with a 3 s time-out and TCP keepalive every 15 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Transport replaces the connections to the brokers. TLS, SASL, Dial and ClientID are then the Transport's own and
	// must not be set here. Its method CloseIdleConnections(), if any, is called to drop stale metadata, and by Close.
	Transport kafka.RoundTripper

	// Pin returns the partition count to use for a topic that has partitions partitions now, and stores that count if
	// the topic is new. cluster is the id of the Kafka cluster, or "" if the brokers do not send one; Pin returns an
	// error for a cluster other than the topic's. With no partitions, because the brokers do not know the topic or do
	// not show it, or for no topic, it only compares the cluster. An [outcome.Refusal] refuses the topic. Another error
	// makes the verdicts of the call unknown if the topic is new, has grown or is in another cluster. Pin is called at
	// a topic's first use, every RecheckEvery, after a failure, and at each Publish while the topic is refused; by one
	// goroutine at a time per topic. Nil: the first count is kept in memory for the life of the Kafka.
	Pin func(ctx context.Context, cluster, topic string, partitions int) (int, error)

	// Logger gets one line when a topic is refused and one when it is accepted again. Nil: slog.Default().
	Logger *slog.Logger
	// Observer is called for every request.
	Observer Observer
}

// Observer has functions that a Kafka calls; each may be nil. They run on the sending goroutines, several at a time,
// and must return quickly.
type Observer struct {
	// Produced: a request was acknowledged.
	Produced func(ProducedInfo)
	// Failed: a request was not acknowledged; it may be repeated or split at once.
	Failed func(FailedInfo)
}

// ProducedInfo describes a request that Kafka acknowledged.
type ProducedInfo struct {
	Topic     string
	Partition int32
	Events    int
	Bytes     int           // compressed
	Took      time.Duration // from sending to the ack
}

// FailedInfo describes a request without an ack.
type FailedInfo struct {
	Topic     string
	Partition int32
	Events    int
	Err       error
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

// Format prints a Config without the fields of SASL: kafka-go's mechanisms hold the password in one.
func (cfg Config) Format(f fmt.State, verb rune) {
	type plain Config
	if cfg.SASL != nil {
		cfg.SASL = mechanismName(cfg.SASL.Name())
	}
	_, _ = fmt.Fprintf(f, fmt.FormatString(f, verb), plain(cfg))
}

// mechanismName replaces a mechanism in a printed Config.
type mechanismName string

// Name returns the mechanism's name.
func (n mechanismName) Name() string { return string(n) }

// Start is never called.
func (n mechanismName) Start(context.Context) (sasl.StateMachine, []byte, error) {
	return nil, nil, errors.New("a printed mechanism")
}

// codecOf returns kafka-go's codec of a name.
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
