package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// settings give up durability against a power cut, which data that is thrown away does not need.
var settings = []string{
	"fsync=off", "full_page_writes=off", "unix_socket_directories=", "max_connections=100",
	"shared_buffers=128MB", "log_min_messages=warning", "timezone=UTC",
}

// Postgres is a server process of its own, at a free port of 127.0.0.1. On Linux it dies with this process.
type Postgres struct {
	home, dir, password string
	account             account
	port                int
	process             *child.Process
}

// StartPostgres starts a server with its data in dir, which must exist; it becomes passable for everybody when this
// process is root, because the server then runs as another account. The programs are fetched if need be, and say is
// told of that. The caller calls Stop, and removes dir after it.
func StartPostgres(ctx context.Context, dir string, say func(string)) (*Postgres, error) {
	home, err := binaries(ctx, say)
	if err != nil {
		return nil, err
	}
	s := &Postgres{home: home, dir: filepath.Join(dir, "postgres"), password: rand.Text()}
	if s.account, err = unprivileged(); err != nil {
		return nil, err
	}
	if err := s.initdb(ctx, dir); err != nil {
		return nil, err
	}
	// Another process may take the free port first: then the server ends at once, and another port is tried.
	for range 5 {
		if s.port, err = child.FreePort(); err != nil {
			break
		}
		if err = s.start(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// URL is the superuser's, with its password: without one, every account of this machine could have the server run
// programs.
func (s *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", s.password, s.port)
}

// Stop ends the server at once and returns when it is gone.
func (s *Postgres) Stop() {
	// The immediate shutdown: nobody will read the data again.
	s.process.Stop(syscall.SIGQUIT, 20*time.Second)
}

func (s *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.home, "bin", name+exe()), args...)
	cmd.Dir = s.dir
	// A locale that the machine lacks stops the server; its messages need none.
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	s.account.run(cmd)
	return cmd
}

func (s *Postgres) initdb(ctx context.Context, parent string) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte(s.password), 0o600); err != nil {
		return err
	}
	if s.account.other {
		if err := os.Chmod(parent, 0o711); err != nil {
			return err
		}
		for _, path := range []string{s.dir, password} {
			if err := os.Chown(path, s.account.uid, s.account.gid); err != nil {
				return fmt.Errorf("handing %s to the account that runs Postgres: %w", path, err)
			}
		}
	}
	cmd := s.command(ctx, "initdb", "-D", filepath.Join(s.dir, "data"), "--username=postgres", "--pwfile="+password,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	// initdb has children of its own, which hold its output a moment longer when it is killed.
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return os.Remove(password)
}

func (s *Postgres) start(ctx context.Context) error {
	args := []string{"-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.port), "-h", "127.0.0.1"}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	// Not tied to ctx: Stop ends it, in order.
	cmd := s.command(context.WithoutCancel(ctx), "postgres", args...)
	var err error
	// SIGQUIT is the immediate shutdown: the server takes its backends with it.
	if s.process, err = child.Start(cmd, filepath.Join(s.dir, "server.log"), syscall.SIGQUIT); err != nil {
		return err
	}
	if err := s.awaitReady(ctx); err != nil {
		s.Stop()
		return err
	}
	return nil
}

func (s *Postgres) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("it does not answer within a minute"))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("postgres ended at its start:\n%s", s.process.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("starting Postgres: %w\n%s", context.Cause(ctx), s.process.LogTail())
		case <-tick.C:
		}
	}
}
