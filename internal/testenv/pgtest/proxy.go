package pgtest

import (
	"iter"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Action is the fault that a Trap injects at its statement.
type Action int

const (
	// CutBefore closes the connection without sending the statement.
	CutBefore Action = iota
	// DropReply sends the statement, waits for the server's reply, and closes the connection without forwarding it.
	DropReply
	// CutAfter sends the statement and closes the client's side at once. The server executes it, perhaps later: from
	// then on the proxy drops all cancel requests, which pgx sends when it abandons a connection.
	CutAfter
	// Late closes the client's side, and sends the statement only when Trap.Release is called. It drops cancel requests
	// as CutAfter does.
	Late
)

// Proxy is a proxy between pgx and Postgres that parses the protocol and injects network faults at chosen statements.
// It needs sslmode=disable, as this package's URLs have it. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string // host:port of the server
	url      string
	wg       sync.WaitGroup

	mu     sync.Mutex
	gate   chan struct{} // open: paused
	refuse bool
	links  map[*link]struct{}
	traps  []*Trap
	watch  func(Passing) *Trap // may be nil
	closed bool

	uncancelled atomic.Bool // a CutAfter or Late trap has fired
}

// Passing is a statement that the proxy is about to send to the server.
type Passing struct {
	SQL string // or [StandbyStatus]
	// Transaction has the earlier statements of the transaction that a BEGIN on this connection has opened.
	Transaction []string
	// Open says whether there is such a transaction.
	Open bool
}

// StandbyStatus is the SQL of a Standby status update, by which a WAL reader confirms its position. It has no reply.
const StandbyStatus = "-- replication: status"

// Trap injects a fault at one statement.
type Trap struct {
	after   func(sql string) bool // matches a statement that must come first in the transaction; may be nil
	match   func(sql string) bool
	skip    int
	action  Action
	then    func(done bool) // may be nil
	fired   chan struct{}
	release chan struct{}
	once    sync.Once
}

// NewTrap makes a trap for [Proxy.Watch]. then is called before the client notices the fault. done says that the action
// took place: the server has executed the statement or, with CutBefore and Late, not received it. It is false if the
// server has rejected the statement or the connection was lost first.
func NewTrap(action Action, then func(done bool)) *Trap {
	return &Trap{action: action, then: then, fired: make(chan struct{}), release: make(chan struct{})}
}

// NewProxy starts a proxy for the server of rawURL. The end of the test stops it.
func NewProxy(t testing.TB, rawURL string) *Proxy {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatalf("pgtest: proxy for %s: %v", rawURL, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: proxy: %v", err)
	}
	p := &Proxy{listener: l, target: u.Host, gate: make(chan struct{}), links: map[*link]struct{}{}}
	close(p.gate)
	u.Host = l.Addr().String()
	p.url = u.String()
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL is rawURL through the proxy.
func (p *Proxy) URL() string { return p.url }

// Address is the proxy's address, host:port.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// OnCommit sets a trap for the next COMMIT of any connection, in a simple or an extended query.
func (p *Proxy) OnCommit(action Action) *Trap { return p.On(IsCommit, 0, action) }

// On sets a trap for a statement whose text matches, after skip earlier ones. It fires once.
func (p *Proxy) On(match func(sql string) bool, skip int, action Action) *Trap {
	return p.set(&Trap{match: match, skip: skip, action: action})
}

// OnCommitAfter sets a trap for the COMMIT of the next transaction that has a statement whose text matches.
func (p *Proxy) OnCommitAfter(match func(sql string) bool, action Action) *Trap {
	return p.set(&Trap{after: match, match: IsCommit, action: action})
}

// Watch calls watch for every statement, concurrently for several connections. A trap that it returns fires at that
// statement.
func (p *Proxy) Watch(watch func(Passing) *Trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = watch
}

func (p *Proxy) set(trap *Trap) *Trap {
	trap.fired, trap.release = make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, trap)
	return trap
}

// Withdraw removes a trap. It returns false if the trap has fired or is firing.
func (p *Proxy) Withdraw(trap *Trap) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.traps, trap)
	if i < 0 {
		return false
	}
	p.traps = slices.Delete(p.traps, i, i+1)
	return true
}

// Fired is closed after the action: the connection is closed, and with DropReply the server has replied.
func (t *Trap) Fired() <-chan struct{} { return t.fired }

// Release sends the statement of a Late trap to the server. The proxy does not report the result.
func (t *Trap) Release() { t.once.Do(func() { close(t.release) }) }

// To connects new clients to the server of another URL, as a DNS name that moves in a failover does. Existing
// connections stay (see CutAll). Database, user and options are the clients'.
func (p *Proxy) To(t testing.TB, rawURL string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatalf("pgtest: proxy to %s: %v", rawURL, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = u.Host
}

// CutAll closes all connections on both sides. New ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Pause forwards nothing in either direction until Resume. Connections stay open.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		p.gate = make(chan struct{})
	default: // is paused
	}
}

// Resume ends a Pause and forwards what was sent meanwhile.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// Refuse closes new connections at once while on. Existing connections stay (see CutAll).
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// IsCommit reports whether a query text has a statement that commits a transaction.
func IsCommit(sql string) bool {
	for word := range commands(sql) {
		if word[0] == "commit" || word[0] == "end" {
			return true
		}
	}
	return false
}

// commands yields the statements of a query text, each as words in lower case, without leading comments.
func commands(sql string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for _, statement := range strings.Split(sql, ";") {
			for {
				statement = strings.TrimSpace(statement)
				comment, ok := strings.CutPrefix(statement, "--")
				if !ok {
					break
				}
				_, statement, _ = strings.Cut(comment, "\n")
			}
			if word := strings.Fields(strings.ToLower(statement)); len(word) > 0 && !yield(word) {
				return
			}
		}
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		refuse, target := p.refuse || p.closed, p.target
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := newLink(p, client, server)
		p.mu.Lock()
		p.links[l] = struct{}{}
		if p.closed || p.refuse { // since: CutAll has not seen it
			l.cut()
		}
		p.mu.Unlock()
		p.wg.Go(l.run)
	}
}

// take removes and returns the trap that fires at this statement, if any. passed are the traps whose condition after
// this connection's transaction has met.
func (p *Proxy) take(s Passing, passed map[*Trap]bool) *Trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	sql := s.SQL
	if p.watch != nil {
		if trap := p.watch(s); trap != nil {
			return trap
		}
	}
	commits := IsCommit(sql)
	for i, trap := range p.traps {
		if trap.after != nil && trap.after(sql) {
			passed[trap] = true
		}
		if !trap.match(sql) || trap.after != nil && !passed[trap] {
			continue
		}
		if trap.skip > 0 {
			trap.skip--
			continue
		}
		p.traps = append(p.traps[:i:i], p.traps[i+1:]...)
		return trap
	}
	if commits {
		clear(passed)
	}
	return nil
}

// awaitResume waits while the proxy is paused. It returns false if the link is closed.
func (p *Proxy) awaitResume(gone <-chan struct{}) bool {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	select {
	case <-gate:
		return true
	case <-gone:
		return false
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.cut()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
