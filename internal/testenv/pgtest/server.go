package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// fast trades durability for speed; durable is for crash tests.
var (
	fast    = []string{"fsync=off", "full_page_writes=off"}
	durable = []string{"fsync=on", "full_page_writes=on"}
)

// Server is a Postgres server process for tests that stop or kill it. It is not safe for concurrent use.
type Server struct {
	temp     func(name string) (dir string, remove func(), err error)
	dir      string
	remove   func()
	port     int
	settings []string
	process  *child.Process // nil while stopped
	paused   int            // process id of the paused WAL writer; 0: not paused
}

// NewServer starts a server with fsync on. The end of the test removes it.
func NewServer(t testing.TB) *Server {
	t.Helper()
	// What a killed server leaves of its dynamic shared memory is in its directory, not in /dev/shm for ever.
	s, err := startServer(child.MemoryDir, slices.Concat(durable, []string{"dynamic_shared_memory_type=mmap"}))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(s.Close)
	child.ShowLog(t, "the test's own Postgres", s.log())
	return s
}

// URL is the superuser's URL of the database postgres. It stays the same over restarts.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// Start starts a stopped server again, on the same port, and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	Await(t, "start of the server", func() (bool, error) {
		err := s.start()
		if err != nil && strings.Contains(err.Error(), stillInUse) {
			return false, nil
		}
		return err == nil, err
	})
}

// TryStart tries once to start a server that was stopped or has ended by itself.
func (s *Server) TryStart() error {
	if s.Ended() {
		s.process, s.paused = nil, 0
	}
	return s.start()
}

// stillInUse is what a server says that does not start beside the backends of a killed postmaster.
const stillInUse = "pre-existing shared memory block"

// killOrphans ends those backends, as an init system would. One that waits for a lock of another that has gone never
// ends by itself.
func (s *Server) killOrphans() {
	data, _ := filepath.EvalSymlinks(filepath.Join(s.dir, "data")) // it may be on a disk of its own
	folders, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, folder := range folders {
		if at, err := os.Readlink(folder); err == nil && at == data {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
			if orphan, err := os.FindProcess(pid); err == nil {
				_ = orphan.Kill()
			}
		}
	}
}

// Ended reports whether the server was stopped or has ended by itself, for example because of a full disk.
func (s *Server) Ended() bool {
	if s.process == nil {
		return true
	}
	select {
	case <-s.process.Done():
		return true
	default:
		return false
	}
}

// log is the path of the server's log, of all its starts.
func (s *Server) log() string { return filepath.Join(s.dir, "server.log") }

// Dir is the server's directory. The cluster is in its subdirectory data.
func (s *Server) Dir() string { return s.dir }

// StopFast is the fast shutdown: it rolls back open transactions and writes a checkpoint.
func (s *Server) StopFast() { s.stop(syscall.SIGINT) }

// StopImmediate is the immediate shutdown, without a checkpoint: the next Start recovers from the WAL.
func (s *Server) StopImmediate() { s.stop(syscall.SIGQUIT) }

// Kill sends SIGKILL to the postmaster. Its backends notice and end by themselves.
func (s *Server) Kill() { s.stop(syscall.SIGKILL) }

// Restart is StopFast and Start.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.StopFast()
	s.Start(t)
}

// SkipWAL makes the WAL of a server that StopFast has stopped continue at a segment, by its file name.
func (s *Server) SkipWAL(t testing.TB, segment string) {
	t.Helper()
	resetwal, err := program("pg_resetwal")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	// A download of Postgres does not have it, and the machine's may be of another major version.
	version, err := exec.Command(resetwal, "--version").Output()
	if err != nil {
		t.Fatalf("pgtest: %s --version: %v", resetwal, err)
	}
	major, err := os.ReadFile(filepath.Join(s.dir, "data", "PG_VERSION"))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if !strings.Contains(string(version), ") "+strings.TrimSpace(string(major))+".") {
		t.Skipf("the server is of Postgres %s, and %s is %s", strings.TrimSpace(string(major)), resetwal, version)
	}
	account, err := child.Unprivileged()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cmd := exec.Command(resetwal, "-l", segment, "-D", filepath.Join(s.dir, "data"))
	cmd.Dir = s.dir
	account.Run(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pgtest: pg_resetwal: %v\n%s", err, out)
	}
}

// Close stops the server and removes its data.
func (s *Server) Close() {
	s.StopImmediate()
	s.remove()
}

// PauseWALWriter pauses the WAL writer until the server is stopped or killed, so that asynchronous commits stay in
// memory. A synchronous commit still writes them.
func (s *Server) PauseWALWriter(t testing.TB) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	// A server accepts connections before its WAL writer has started.
	Await(t, "the WAL writer", func() (bool, error) {
		err := conn.QueryRow(t.Context(), `select pid from pg_stat_activity where backend_type = 'walwriter'`).Scan(
			&s.paused)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
	if err := signal(s.paused, child.Pause); err != nil {
		t.Fatalf("pgtest: pause the WAL writer: %v", err)
	}
}

func (s *Server) stop(sig os.Signal) {
	if s.process == nil {
		return
	}
	if s.paused != 0 && sig != syscall.SIGKILL {
		_ = signal(s.paused, child.Resume) // so that it handles the shutdown
	}
	s.process.Stop(sig, time.Minute)
	if s.paused != 0 && sig == syscall.SIGKILL {
		_ = signal(s.paused, syscall.SIGKILL) // with SIGCONT it could write before it notices the end
	}
	s.process, s.paused = nil, 0
}

func signal(pid int, sig os.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Signal(sig)
}

func startServer(temp func(string) (string, func(), error), settings []string) (*Server, error) {
	// A URL does not override these, which this process' user may have set for databases of his own.
	for _, name := range []string{"PGOPTIONS", "PGTARGETSESSIONATTRS", "PGSERVICE", "PGSERVICEFILE"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	dir, remove, err := temp("pg")
	if err != nil {
		return nil, err
	}
	s := &Server{temp: temp, dir: dir, remove: remove, settings: settings}
	if err := newDataDir(dir); err != nil {
		remove()
		return nil, err
	}
	// Another process may take the free port first. Then the server ends at once; try another port.
	for range 5 {
		if s.port, err = child.FreePort(); err != nil {
			break
		}
		if err = s.start(); err == nil {
			return s, nil
		}
	}
	s.Close()
	return nil, err
}

func (s *Server) start() error {
	if s.process != nil {
		return errors.New("the server is already running")
	}
	postgres, err := program("postgres")
	if err != nil {
		return err
	}
	account, err := child.Unprivileged()
	if err != nil {
		return err
	}
	if err := account.Own(s.dir); err != nil {
		return err
	}
	args := []string{"-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.port), "-h", "127.0.0.1", "-k", ""}
	for _, set := range append([]string{
		"synchronous_commit=on", "wal_level=logical", "max_connections=300", "shared_buffers=128MB",
		"max_prepared_transactions=20", "max_locks_per_transaction=256", "max_wal_size=2GB", "timezone=UTC",
		"log_min_messages=warning", "log_checkpoints=off", "max_replication_slots=100", "max_wal_senders=100",
	}, s.settings...) {
		args = append(args, "-c", set)
	}
	cmd := exec.Command(postgres, args...)
	cmd.Dir = s.dir
	// The server does not start with a locale that the machine lacks.
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	account.Run(cmd)
	// On SIGQUIT the postmaster stops its backends too.
	s.process, err = child.Start(cmd, s.log(), syscall.SIGQUIT)
	if err != nil {
		s.process = nil
		return err
	}
	return s.awaitReady()
}

// awaitReady waits until the server answers, or its process ends. Where another process has drawn the same port, its
// server answers until this one has ended for want of it.
func (s *Server) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			var data string
			err = errors.Join(conn.QueryRow(ctx, "show data_directory").Scan(&data), conn.Close(ctx))
			if err == nil && data == filepath.Join(s.dir, "data") {
				return nil
			}
		}
		select {
		case <-s.process.Done():
			log := s.process.LogTail()
			s.process = nil
			if strings.Contains(log, stillInUse) {
				s.killOrphans()
			}
			return fmt.Errorf("the server ended during its start:\n%s", log)
		case <-ctx.Done():
			log := s.process.LogTail()
			s.stop(syscall.SIGQUIT)
			return fmt.Errorf("the server does not answer: %w\n%s", err, log)
		case <-tick.C:
		}
	}
}
