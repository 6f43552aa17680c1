package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// settings of a server. Those of temporary data trade durability for speed.
var (
	settings = []string{
		"unix_socket_directories=", "max_connections=100", "shared_buffers=128MB", "log_min_messages=warning",
		"timezone=UTC", "wal_level=logical",
	}
	temporary = []string{"fsync=off", "full_page_writes=off"}
)

// Postgres is a server process on 127.0.0.1. On Linux it dies with this process.
type Postgres struct {
	home, dir, password string
	keep                bool
	account             child.Account
	port                int
	process             *child.Process
}

// StartPostgres starts a server with its data in a folder of cfg.Dir, which must exist. Under root it gives all users
// access to Dir, because the server runs as another account. It downloads the programs the first time and logs that.
// The caller calls Stop.
func StartPostgres(ctx context.Context, cfg Config, log func(string)) (*Postgres, error) {
	home, err := binaries(ctx, log)
	if err != nil {
		return nil, err
	}
	s := &Postgres{home: home, dir: filepath.Join(cfg.Dir, "postgres"), keep: cfg.Keep, password: rand.Text()}
	if s.account, err = child.Unprivileged(); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, cfg.Dir); err != nil {
		return nil, err
	}
	s.port = cfg.Port
	if s.port != 0 && free(s.port) {
		if err = s.start(ctx); err == nil || ctx.Err() != nil {
			return s, err
		}
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

func free(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// prepare creates the data directory, or finds the one of an earlier server. It is renamed when it is complete.
func (s *Postgres) prepare(ctx context.Context, parent string) error {
	if !s.keep {
		return s.initdb(ctx, parent)
	}
	if kept, err := os.ReadFile(filepath.Join(s.dir, "password")); err == nil {
		s.password = string(kept)
		return nil
	}
	final := s.dir
	s.dir += ".new"
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	if err := s.initdb(ctx, parent); err != nil {
		return err
	}
	s.dir = final
	return os.Rename(final+".new", final)
}

// URL is the superuser's. It has a password, because a superuser can run programs through the server.
func (s *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", s.password, s.port)
}

// Stop shuts the server down and waits for its end.
func (s *Postgres) Stop() {
	how := syscall.SIGQUIT // immediate: the data is temporary
	if s.keep {
		how = syscall.SIGINT // fast: it closes connections and writes everything
	}
	s.process.Stop(how, 20*time.Second)
}

func (s *Postgres) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.home, "bin", name+exe()), args...)
	cmd.Dir = s.dir
	// The server does not start with a locale that the machine lacks.
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	s.account.Run(cmd)
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
	if s.account.Other() {
		if err := os.Chmod(parent, 0o711); err != nil {
			return err
		}
		if err := reachable(parent); err != nil {
			return err
		}
		if err := s.account.Own(s.dir, password); err != nil {
			return err
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
	if s.keep {
		return nil // the next start needs it
	}
	return os.Remove(password)
}

// reachable lets all users into dir.
func reachable(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("Postgres does not run as root, and no other account gets into %s: choose a folder "+
				"that is not below it, or start this program as an ordinary user", at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func (s *Postgres) start(ctx context.Context) error {
	args := []string{"-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.port), "-h", "127.0.0.1"}
	all := slices.Clone(settings)
	if !s.keep {
		all = append(all, temporary...)
	}
	for _, set := range all {
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
