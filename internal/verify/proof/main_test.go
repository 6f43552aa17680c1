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

// The test binary plays a role when these are set.
const (
	envRole  = "PROOF_ROLE"
	envURL   = "PROOF_URL"
	envKafka = "PROOF_KAFKA"
	envTopic = "PROOF_TOPIC"

	// byWatermark: that of the worker, and the operator looks before letting anything be applied
	envDedup = "PROOF_DEDUP"

	envSource = "PROOF_SOURCE" // fromWAL: that of the relay

	envCalm = "PROOF_CALM" // not empty: nothing is refused, fails or falls silent

	envUnusual = "PROOF_UNUSUAL" // not empty: few events a claim and no archive; one event in a parked key's list
)

// byWatermark is the value of envDedup; otherwise the worker goes by ids.
const byWatermark = "watermark"

// fromWAL is the value of envSource; otherwise the relay polls.
const fromWAL = "wal"

// role is what a process does.
type role string

const (
	producer role = "producer"
	relaying role = "relay"
	worker   role = "worker"
	person   role = "operator"
)

// stage is what a role works on.
type stage struct {
	db      *pgxpool.Pool
	brokers []string
	topic   string
}

// dial goes to the proxy before the broker, whatever address the broker advertises.
func (s *stage) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, s.brokers[0])
}

func TestMain(m *testing.M) {
	roles := map[role]func(context.Context, *stage) error{
		producer: runProducer, relaying: runRelay, worker: runWorker,
		person: runOperator,
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
