package payments_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// Environment of a child process, which is this test binary.
const (
	envDatabase = "PAYMENTS_TEST_DATABASE"
	envSchema   = "PAYMENTS_TEST_SCHEMA"
	envBank     = "PAYMENTS_TEST_BANK"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(envDatabase); url != "" {
		if err := serveChild(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m, kafkatest.Stop)
}

// serveChild serves until it is killed, or until its standard input ends with its parent. Its recovery does not run
// during the test.
func serveChild(url string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString(0)
		cancel()
	}()
	bank, err := payments.HTTPProvider(os.Getenv(envBank), 0)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	cfg := payments.Config{
		Schema: os.Getenv(envSchema), Listener: listener, SkipMigrate: true, Cards: bank,
		Logger: slog.New(slog.DiscardHandler),
	}
	cfg.Recovery.Every = time.Hour
	fmt.Println(listener.Addr())
	return payments.Run(ctx, db, cfg)
}

// child is a process that serves the API.
type child struct {
	url string
	mu  sync.Mutex
	cmd *exec.Cmd
}

// start starts the process over the fixture's database and provider.
func (c *child) start(t *testing.T, f *cardFixture) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cmd = exec.Command(self)
	c.cmd.Env = append(os.Environ(), envDatabase+"="+f.URL, envSchema+"="+f.Schema, envBank+"="+f.bankURL)
	c.cmd.Stderr = os.Stderr
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		c.kill()
		_ = c.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child has not said where it listens: %v", err)
	}
	c.url = "http://" + strings.TrimSpace(line)
}

// kill sends SIGKILL.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.cmd.Process.Kill()
}
