// Package roles holds the roles of a test that runs for a while: producers, relays, workers, an operator and a
// maintainer, each a process of its own that is killed, paused and cut off. A test binary that calls Main first is all
// of them: it starts itself again with a Config in its environment.
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

	"github.com/effectonce/effectonce/internal/verify/history"
)

// EnvConfig names the variable that gives a process its role: a Config in JSON.
const EnvConfig = "EFFECTONCE_ROLE"

// The roles. Each connects as the least privileged user that can do its work.
const (
	Producer   = "producer"
	Relay      = "relay"
	Worker     = "worker"
	Operator   = "operator"
	Maintainer = "maintainer"
)

// Consumer is the name that workers share in the inbox, and their group in Kafka.
const Consumer = "ledger"

// Config is what a process is told. It has no defaults: a test says everything.
type Config struct {
	Role, Name string // the name is unique among the processes of a test, and the same after a restart
	Life       int    // counts its restarts: the same choices are not made twice
	Seed       uint64 // of all processes
	History    string // the directory that its history goes to
	URL        string // of the database, through the process's own proxy
	OwnerURL   string // Maintainer: as the owner of the outbox's tables
	Conns      int    // the pool's size
	Brokers    []string
	Through    map[string]string // a broker's address to the proxy's that stands before it, for this process
	Topics     []string

	Rate, Writers int           // Producer: events per second, and transactions at a time
	Keys          int           // Producer: aggregates
	TooLarge      string        // Producer: the topic that refuses large events
	Jump          time.Duration // Producer: how far off its clock is when it makes ids; negative: behind
	Each          bool          // Worker: one event after the other, not a batch at once
	ByWatermark   bool          // Worker: it goes by numbers and not by ids. Operator: the worker does
	FromWAL       bool          // Relay: it reads the WAL
	Trouble       float64       // Worker: the chance of each kind of failure, per event
}

// Main takes a role and exits when this process was given one, and returns otherwise. TestMain calls it first.
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
		err = goleak.Find() // what Run leaves behind, a process that embeds it would keep
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "process:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Command is this program once more, in a role. The caller starts it.
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
	p.note(history.Entry{Kind: history.KindStart, Count: cfg.Life})
	if err := run(ctx, p); err != nil {
		p.note(history.Entry{Kind: history.KindStop, Err: err.Error()})
		return err
	}
	p.note(history.Entry{Kind: history.KindStop})
	return nil
}

// note writes an entry and returns its number. A process that can no longer say what it does must do nothing more.
func (p *process) note(e history.Entry) int64 {
	n, err := p.rec.Write(e)
	if err != nil {
		fmt.Fprintln(os.Stderr, "process: no history, so no more work:", err)
		os.Exit(3)
	}
	return n
}

// process is what every role has.
type process struct {
	Config
	db  *pgxpool.Pool
	rec *history.Writer
	log *slog.Logger
}

// choices is the second half of a generator's seed, for the i-th goroutine of this life.
func (p *process) choices(i int) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s.%d.%d", p.Name, p.Life, i)
	return h.Sum64()
}

// open makes a pool whose statements end even when nothing answers: a half-open connection would hold a process for
// ever.
func open(url string, conns int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the URL of the database: %w", err)
	}
	cfg.MaxConns = int32(conns)
	cfg.ConnConfig.ConnectTimeout = 3 * time.Second
	return pgxpool.NewWithConfig(context.Background(), cfg)
}
