package soak

import (
	"net"
	"slices"
	"sync"
	"testing"
)

// route connects a process's proxy to Postgres: to the primary, or for a while to a standby, like a DNS name in a
// failover. It can also make connections dead: neither side gets another packet, nor an end.
type route struct {
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	target string
	closed bool
	gate   chan struct{} // closed: bytes pass
	links  map[*wire]struct{}
	made   map[string]int // connections so far, by target
}

// wire is one connection.
type wire struct {
	client, server net.Conn
	target         string
	dead           chan struct{} // closed: no more bytes pass
	ended          chan struct{} // closed: the server has ended a dead wire
	once           sync.Once
}

func newRoute(t *testing.T, target string) *route {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &route{
		listener: listener, target: target, gate: make(chan struct{}), links: map[*wire]struct{}{},
		made: map[string]int{},
	}
	close(l.gate)
	l.done.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.cut()
		l.done.Wait()
	})
	return l
}

func (l *route) address() string { return l.listener.Addr().String() }

func (l *route) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.mu.Lock()
		target := l.target
		l.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		w := &wire{
			client: client, server: server, target: target, dead: make(chan struct{}),
			ended: make(chan struct{}),
		}
		l.mu.Lock()
		l.links[w] = struct{}{}
		l.made[target]++
		if l.closed {
			w.kill()
			w.close()
		}
		l.mu.Unlock()
		var both sync.WaitGroup
		both.Go(func() { l.pump(w, client, server) })
		both.Go(func() { l.pump(w, server, client) })
		l.done.Go(func() {
			both.Wait()
			l.mu.Lock()
			delete(l.links, w)
			l.mu.Unlock()
		})
	}
}

// pump copies one direction. On a dead wire it only waits for the server to end it.
func (l *route) pump(w *wire, from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if l.passes(w) {
			if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
				w.close()
				return
			}
			continue
		}
		if err != nil {
			if from == w.server {
				close(w.ended)
				w.close()
			}
			return
		}
	}
}

// passes waits until the gate is open, and returns false if the wire is dead.
func (l *route) passes(w *wire) bool {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	select {
	case <-w.dead:
		return false
	default:
	}
	select {
	case <-gate:
		return true
	case <-w.dead:
		return false
	}
}

func (w *wire) close() {
	_ = w.client.Close()
	_ = w.server.Close()
}

// setOpen opens or closes the gate.
func (l *route) setOpen(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gate:
		if !on {
			l.gate = make(chan struct{})
		}
	default:
		if on {
			close(l.gate)
		}
	}
}

// setTarget changes the target of new connections.
func (l *route) setTarget(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// wires returns the current connections.
func (l *route) wires() (all []*wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.links {
		all = append(all, w)
	}
	return all
}

// cut ends all connections on both sides.
func (l *route) cut() {
	for _, w := range l.wires() {
		w.kill()
		w.close()
	}
}

func (w *wire) kill() { w.once.Do(func() { close(w.dead) }) }

// port is the client port that Postgres sees.
func (w *wire) port() int { return w.server.LocalAddr().(*net.TCPAddr).Port }

// connections returns how many connections were made to a target.
func (l *route) connections(target string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made[target]
}

func ports(wires []*wire) (all []int) {
	for _, w := range wires {
		all = append(all, w.port())
	}
	return all
}

// allAt reports whether there are connections, all to the target.
func (l *route) allAt(target string) bool {
	wires := l.wires()
	return len(wires) > 0 && !slices.ContainsFunc(wires, func(w *wire) bool { return w.target != target })
}
