package consumer

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// netTimeout bounds one exchange with a broker, in addition to the time that the request asks the broker to wait.
const netTimeout = 5 * time.Second

// conns tracks open connections. kafka-go cannot cancel the wait for a response; only closing the connection ends it.
// Closing all connections also shows that kafka-go's goroutines have ended.
type conns struct {
	dialer func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

// conn removes itself from its conns when it is closed.
type conn struct {
	net.Conn
	of   *conns
	once sync.Once
}

func newConns(dial func(ctx context.Context, network, address string) (net.Conn, error)) *conns {
	return &conns{dialer: dial, open: map[*conn]struct{}{}}
}

var errShutdown = errors.New("the consumer is shutting down")

func (cs *conns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	cs.mu.Lock()
	if cs.closed {
		cs.mu.Unlock()
		return nil, errShutdown
	}
	cs.wg.Add(1)
	cs.mu.Unlock()
	// A dial in progress counts as an open connection: shutdown waits for it.
	ctx, cancel := context.WithTimeout(ctx, netTimeout)
	defer cancel()
	nc, err := cs.dialer(ctx, network, address)
	if err != nil {
		cs.wg.Done()
		return nil, err
	}
	c := &conn{Conn: nc, of: cs}
	cs.mu.Lock()
	cs.open[c] = struct{}{}
	closed := cs.closed
	cs.mu.Unlock()
	if closed {
		_ = c.Close()
		return nil, errShutdown
	}
	return c, nil
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.of.mu.Lock()
		delete(c.of.open, c)
		c.of.mu.Unlock()
		c.of.wg.Done()
	})
	return err
}

// shutdown closes every connection, refuses new ones, and waits until none is left.
func (cs *conns) shutdown() {
	cs.mu.Lock()
	cs.closed = true
	open := make([]*conn, 0, len(cs.open))
	for c := range cs.open {
		open = append(open, c)
	}
	cs.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	cs.wg.Wait()
}
