package endtoend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// The test binary runs as a worker if these are set.
const (
	envRole  = "ENDTOEND_ROLE"
	envURL   = "ENDTOEND_URL"
	envKafka = "ENDTOEND_KAFKA"
	envTopic = "ENDTOEND_TOPIC"

	rolePoisoned = "poisoned"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRole) == rolePoisoned {
		os.Exit(runChild(runPoisoned))
	}
	pgtest.Main(m, kafkatest.Stop)
}

func runChild(run func(ctx context.Context, db *pgxpool.Pool, brokers []string, topic string) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err == nil {
		defer db.Close()
		err = run(ctx, db, []string{os.Getenv(envKafka)}, os.Getenv(envTopic))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// testbed is the database and topic of the processes.
type testbed struct {
	db      *pgtest.DB
	topic   string
	started int
}

// start runs this test binary in a role.
func (s *testbed) start(t *testing.T, role string) *child.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envRole+"="+role, envURL+"="+s.db.URL, envKafka+"="+kafkatest.Brokers(t)[0],
		envTopic+"="+s.topic)
	s.started++
	p, err := child.Start(cmd, filepath.Join(t.TempDir(), fmt.Sprintf("%s-%d.log", role, s.started)), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(syscall.SIGKILL, time.Minute) })
	return p
}

// awaitKill waits for the end of a process, which must be by SIGKILL.
func awaitKill(t *testing.T, p *child.Process) {
	t.Helper()
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("a child ended by itself (%v): %s", err, p.LogTail())
	}
}
