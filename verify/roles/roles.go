// Package roles has the processes of long-running tests: producers, relays, workers, an operator and a maintainer,
// which tests kill, pause and disconnect. Each is the test binary itself, started again with a Config in its
// environment; its TestMain calls Main first.
package roles

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/verify/history"
)

// EnvConfig is the variable for a process's Config, in JSON.
const EnvConfig = "EFFECTONCE_ROLE"

// Roles. Each connects as the least privileged user that can do its work.
const (
	Producer   = "producer"
	Relay      = "relay"
	Worker     = "worker"
	Operator   = "operator"
	Maintainer = "maintainer"
	Program    = "program" // another program takes the process's place
)

// Consumer is the name that workers share in the inbox, and their group in Kafka.
const Consumer = "ledger"

// Config configures a process. It has no defaults.
type Config struct {
	Role, Name string // the name is unique among the processes of a test; restarts keep it
	Life       int    // number of restarts; part of the random seed
	Seed       uint64 // of all processes
	History    string // directory of its history
	URL        string // of the database, through the process's proxy
	OwnerURL   string // Maintainer: as the owner of the outbox's tables
	Conns      int    // the pool's size
	Brokers    []string
	Proxies    map[string]string // address of this process's proxy by broker address
	Topics     []string

	Rate, Writers int           // Producer: events per second, and concurrent transactions
	Keys          int           // Producer: aggregates
	TooLarge      string        // Producer: the topic that refuses large events
	ClockOffset   time.Duration // Producer: error of the clock that makes ids; negative: behind
	Each          bool          // Worker: inbox.Each instead of inbox.Batch
	Parallel      int           // Worker: transactions of a partition at a time, without ByWatermark
	ByWatermark   bool          // Worker: deduplicate by watermark. Operator: the worker does
	FromWAL       bool          // Relay: read the WAL
	FailureRate   float64       // Worker: probability of each kind of failure, per event
	Program, Env  []string      // Program: its path, the arguments, and what is added to the environment
}

// Main runs the role of this process and exits, or returns if it has none. TestMain calls it first.
func Main() {
	text := os.Getenv(EnvConfig)
	if text == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := runRole(ctx, text)
	stop()
	if err == nil {
		err = goleak.Find() // Run must not leak goroutines
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "process:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns the command that runs this program in a role. The caller starts it.
func Command(cfg Config) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), EnvConfig+"="+string(text))
	return cmd, nil
}

func runRole(ctx context.Context, text string) error {
	var cfg Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return fmt.Errorf("%s: %w", EnvConfig, err)
	}
	if cfg.Role == Program {
		return syscall.Exec(cfg.Program[0], cfg.Program, append(os.Environ(), cfg.Env...))
	}
	run, ok := map[string]func(ctx context.Context, p *process) error{
		Producer: produce, Relay: publish, Worker: work, Operator: operate, Maintainer: maintain,
	}[cfg.Role]
	if !ok {
		return fmt.Errorf("%s: no role %q", EnvConfig, cfg.Role)
	}
	rec, err := history.Create(cfg.History, cfg.Name)
	if err != nil {
		return err
	}
	defer func() { _ = rec.Close() }()
	db, err := open(cfg.URL, cfg.Conns)
	if err != nil {
		return err
	}
	defer db.Close()
	p := &process{Config: cfg, db: db, rec: rec, log: slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process",
		cfg.Name)}
	p.record(history.Entry{Kind: history.KindStart, Count: cfg.Life})
	if err := run(ctx, p); err != nil {
		p.record(history.Entry{Kind: history.KindStop, Err: err.Error()})
		return err
	}
	p.record(history.Entry{Kind: history.KindStop})
	return nil
}

// record writes an entry and returns its number. A process that cannot write its history exits.
func (p *process) record(e history.Entry) int64 {
	n, err := p.rec.Write(e)
	if err != nil {
		fmt.Fprintln(os.Stderr, "process: writing the history:", err)
		os.Exit(3)
	}
	return n
}

// process is the common part of the roles.
type process struct {
	Config
	db  *pgxpool.Pool
	rec *history.Writer
	log *slog.Logger
}

// seed returns the second half of a generator's seed, for the i-th goroutine of this life.
func (p *process) seed(i int) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s.%d.%d", p.Name, p.Life, i)
	return h.Sum64()
}

// open makes a pool with a connect time-out.
func open(url string, conns int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the URL of the database: %w", err)
	}
	cfg.MaxConns = int32(conns)
	cfg.ConnConfig.ConnectTimeout = 3 * time.Second
	return pgxpool.NewWithConfig(context.Background(), cfg)
}
