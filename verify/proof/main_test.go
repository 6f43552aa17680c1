package proof

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// The test binary runs as a role if these are set.
const (
	envRole  = "PROOF_ROLE"
	envURL   = "PROOF_URL"
	envKafka = "PROOF_KAFKA"
	envTopic = "PROOF_TOPIC"

	// byWatermark: the worker deduplicates by it, and the operator checks for an effect before a release
	envDedup = "PROOF_DEDUP"

	envFeed = "PROOF_FEED" // fromWAL: the relay reads the WAL

	envCalm = "PROOF_CALM" // not empty: the broker refuses nothing, effects succeed, partitions answer

	envUnusual = "PROOF_UNUSUAL" // not empty: few events per claim, no archive, short drains, one event in a key's list
)

// byWatermark is a value of envDedup; by default the worker deduplicates by id.
const byWatermark = "watermark"

// fromWAL is a value of envFeed; by default the relay polls.
const fromWAL = "wal"

// role is what a process does.
type role string

const (
	producer     role = "producer"
	relaying     role = "relay"
	worker       role = "worker"
	operatorRole role = "operator"
)

// stage is a role's access to the database and Kafka.
type stage struct {
	db      *pgxpool.Pool
	brokers []string
	topic   string
}

// dial connects to the broker's proxy, whichever address the broker advertises.
func (s *stage) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, s.brokers[0])
}

func TestMain(m *testing.M) {
	roles := map[role]func(context.Context, *stage) error{
		producer: runProducer, relaying: runRelay, worker: runWorker,
		operatorRole: runOperator,
	}
	if run := roles[role(os.Getenv(envRole))]; run != nil {
		os.Exit(runChild(run))
	}
	pgtest.Main(m, kafkatest.Stop)
}

func runChild(run func(context.Context, *stage) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg, err := pgxpool.ParseConfig(os.Getenv(envURL))
	if err == nil {
		cfg.MaxConns = 8
		var db *pgxpool.Pool
		if db, err = pgxpool.NewWithConfig(ctx, cfg); err == nil {
			defer db.Close()
			err = run(ctx, &stage{db: db, brokers: []string{os.Getenv(envKafka)}, topic: os.Getenv(envTopic)})
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
