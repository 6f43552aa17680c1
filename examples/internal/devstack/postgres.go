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

// settings trade durability for speed: the data is temporary.
var settings = []string{
	"fsync=off", "full_page_writes=off", "unix_socket_directories=", "max_connections=100",
	"shared_buffers=128MB", "log_min_messages=warning", "timezone=UTC",
}

// Postgres is a server process on a free port of 127.0.0.1. On Linux it dies with this process.
type Postgres struct {
	home, dir, password string
	account             account
	port                int
	process             *child.Process
}

// StartPostgres starts a server with its data in dir, which must exist. Under root it gives everybody access to dir,
// because the server runs as another account. It downloads the programs the first time and logs that. The caller calls
// Stop, and then removes dir.
func StartPostgres(ctx context.Context, dir string, log func(string)) (*Postgres, error) {
	home, err := binaries(ctx, log)
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
	// Another process may take the free port first. Then the server ends at once; try another port.
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

// URL is the superuser's. It has a password, because a superuser can run programs through the server.
func (s *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", s.password, s.port)
}

// Stop shuts the server down and waits for its end.
func (s *Postgres) Stop() {
	s.process.Stop(syscall.SIGQUIT, 20*time.Second) // immediate shutdown: the data is temporary
}

func (s *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.home, "bin", name+exe()), args...)
	cmd.Dir = s.dir
	// The server does not start with a locale that the machine lacks.
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
				return fmt.Errorf("giving %s to the account that runs Postgres: %w", path, err)
			}
		}
	}
	cmd := s.command(ctx, "initdb", "-D", filepath.Join(s.dir, "data"), "--username=postgres", "--pwfile="+password,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	// The children of a killed initdb hold its output open a moment longer.
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
	// Stop ends the server, not ctx.
	cmd := s.command(context.WithoutCancel(ctx), "postgres", args...)
	var err error
	// On SIGQUIT the server stops its backends too.
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
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no answer within a minute"))
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
			return fmt.Errorf("Postgres ended during its start:\n%s", s.process.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("starting Postgres: %w\n%s", context.Cause(ctx), s.process.LogTail())
		case <-tick.C:
		}
	}
}
