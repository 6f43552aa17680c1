// Package child runs the real servers that tests need as child processes which never outlive the test:
// the kernel ends them when the test process dies (on Linux), and Stop ends them otherwise.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Process is a running child. Its methods may be called from any goroutine.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	once sync.Once
	err  error // valid once done is closed
}

// Start runs cmd with its output in the file logPath (appended) and returns when it is running.
// dying is the signal the child gets when this process dies; it is used on Linux only.
func Start(cmd *exec.Cmd, logPath string, dying syscall.Signal) (*Process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", cmd.Path, err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	prepare(cmd, dying)
	p := &Process{cmd: cmd, log: logPath, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the *thread* that forked ends, so that thread is kept until the child
		// is gone.
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

// Wait waits for the child's end and returns how it ended, as exec.Cmd.Wait does.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig to the child; a child that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.cmd.Path, err)
	}
	return nil
}

// Stop sends sig, waits for the end up to timeout, and then kills. It returns once the child is gone.
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

// LogTail is the last part of what the child wrote, for error messages.
func (p *Process) LogTail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return strings.TrimSpace(string(b))
}

// Main runs the tests of a binary, then each stop function, then looks for goroutines that were left behind, and exits.
func Main(m *testing.M, stops ...func()) {
	code := m.Run()
	for _, stop := range stops {
		stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "a goroutine outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
