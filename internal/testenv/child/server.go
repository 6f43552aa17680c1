package child

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a server with a directory and a port of its own, which tests may kill and start again.
type Server struct {
	Dir     string
	Port    int
	run     func(*Server) (*Process, error)
	remove  func()
	process *Process // nil while stopped
}

// NewServer starts a server: run starts its process, and waits until it answers. The caller calls Close.
func NewServer(name string, run func(*Server) (*Process, error)) (*Server, error) {
	dir, remove, err := TempDir(name)
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, run: run, remove: remove}
	if err := OnFreePort(func(port int) error { s.Port = port; return s.start() }); err != nil {
		remove()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return s, nil
}

func (s *Server) start() (err error) {
	s.process, err = s.run(s)
	return err
}

// Addr is the server's host:port, the same after a restart.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

// Kill sends SIGKILL.
func (s *Server) Kill() {
	if s.process != nil {
		s.process.Stop(syscall.SIGKILL, 10*time.Second)
		s.process = nil
	}
}

// Start starts a killed server again with its files.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatalf("start %s again: %v", s.Dir, err)
	}
}

// Signal sends a signal to the process, such as SIGSTOP or SIGCONT.
func (s *Server) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := s.process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// Close stops the server and removes its directory.
func (s *Server) Close() {
	s.Kill()
	s.remove()
}

// Shared is the server of a test binary. The first test that needs it starts it.
type Shared struct {
	mu     sync.Mutex
	server *Server
}

// Get returns the server.
func (s *Shared) Get(t testing.TB, start func() (*Server, error)) *Server {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		server, err := start()
		if err != nil {
			t.Fatal(err)
		}
		s.server = server
	}
	return s.server
}

// Stop stops the server if this binary started it, for Main.
func (s *Shared) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

// OnFreePort calls start with a free port, and a few times with another one if that fails: another process may have
// taken the port.
func OnFreePort(start func(port int) error) error {
	var err error
	for range 3 {
		var port int
		if port, err = FreePort(); err != nil {
			return err
		}
		if err = start(port); err == nil {
			return nil
		}
	}
	return err
}

// Await calls ping until the started server answers. If it ends, or does not answer within timeout, it is killed, and
// the error has the end of its log.
func (p *Process) Await(timeout time.Duration, ping func(ctx context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := ping(ctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("the process ended: %w\n%s", p.Wait(), p.LogTail())
		case <-limit.C:
			p.Stop(syscall.SIGKILL, 10*time.Second)
			return fmt.Errorf("the server does not answer: %w\n%s", err, p.LogTail())
		case <-tick.C:
		}
	}
}
