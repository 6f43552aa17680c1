package child

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

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
