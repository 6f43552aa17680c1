// Package child runs the servers of tests as child processes. Stop stops them; on Linux the kernel also kills them when
// the test process dies.
package child

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Process is a child process. It is safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	once sync.Once
	err  error // valid once done is closed
}

// Start starts cmd and appends its output to the file logPath. deathSignal is sent to the child when this process dies,
// on Linux only.
func Start(cmd *exec.Cmd, logPath string, deathSignal syscall.Signal) (*Process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", cmd.Path, err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	prepare(cmd, deathSignal)
	p := &Process{cmd: cmd, log: logPath, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the thread that forked ends, so keep that thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = out.Close() }()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the child and returns the error of exec.Cmd.Wait.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig to the child. It returns nil if the child has ended.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.cmd.Path, err)
	}
	return nil
}

// Stop sends sig, waits for the end of the child, and kills it after timeout.
func (p *Process) Stop(sig os.Signal, timeout time.Duration) {
	p.once.Do(func() { _ = p.Signal(sig) })
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// LogTail is the end of the child's log, for error messages.
func (p *Process) LogTail() string {
	text, err := tail(p.log, 0)
	if err != nil {
		return err.Error()
	}
	return text
}

// Main runs the tests of a binary, calls stops, fails if a goroutine has leaked, and exits. Without a test's logger
// nothing is logged: it would stand in a neighbour's output.
func Main(m *testing.M, stops ...func()) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	code := m.Run()
	for _, stop := range stops {
		stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "a goroutine has leaked:", err)
			code = 1
		}
	}
	os.Exit(code)
}
