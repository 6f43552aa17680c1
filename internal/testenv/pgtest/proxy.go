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

// Action is what a Proxy does to the statement that a Trap waits for.
type Action int

const (
	// CutBefore closes the connection and never sends the statement: it did not happen.
	CutBefore Action = iota
	// DropReply sends the statement, waits for the server's answer, and closes the connection instead of passing it on:
	// it happened.
	DropReply
	// CutAfter sends the statement and closes the client's side at once: it happens, perhaps later than the client's
	// next step.
	CutAfter
	// Late closes the client's side, and sends the statement to the server only when Trap.Release is called. Where that
	// is late so is a request to cancel what the connection was doing, which pgx sends when it gives one up: none is
	// passed on any more.
	Late
)

// Proxy stands between pgx and Postgres, understands the protocol, and makes the network fail at a chosen statement.
// It needs sslmode=disable, as the URLs of this package have it. Its methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	target   string // host:port of the server
	url      string
	wg       sync.WaitGroup

	mu     sync.Mutex
	gate   chan struct{} // closed: traffic flows
	refuse bool
	links  map[*link]struct{}
	traps  []*Trap
	judge  func(Passing) *Trap // nil: none
	closed bool

	late atomic.Bool // a Late trap has sprung
}

// Passing is a statement on its way to the server.
type Passing struct {
	SQL string // or [StandbyStatus]
	// Transaction has the statements before it in the transaction that a BEGIN on this connection has opened.
	Transaction []string
	// Open: there is such a transaction.
	Open bool
}

// StandbyStatus stands for the message by which a reader of the WAL confirms how far it is. It has no answer.
const StandbyStatus = "-- replication: status"

// Trap waits for one statement.
type Trap struct {
	after   func(sql string) bool // what must have passed on the same connection before; nil: nothing
	match   func(sql string) bool
	skip    int
	action  Action
	then    func(done bool) // nil: nothing
	fired   chan struct{}
	release chan struct{}
	once    sync.Once
}

// NewTrap makes a trap for [Proxy.Watch]. then is called before the client sees anything; done says that the server has
// done the statement or, with CutBefore and Late, does not have it yet. Otherwise it has refused it, or was gone first.
func NewTrap(action Action, then func(done bool)) *Trap {
	return &Trap{action: action, then: then, fired: make(chan struct{}), release: make(chan struct{})}
}

// NewProxy starts a proxy for the server of rawURL, which keeps its database, user and options. It ends with the test.
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

// URL is the server's URL through the proxy.
func (p *Proxy) URL() string { return p.url }

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// OnCommit sets a trap for the next COMMIT of any connection, however it is sent.
func (p *Proxy) OnCommit(action Action) *Trap { return p.On(IsCommit, 0, action) }

// On sets a trap for a statement whose text matches, after skip others that match too. It works once.
func (p *Proxy) On(match func(sql string) bool, skip int, action Action) *Trap {
	return p.set(&Trap{match: match, skip: skip, action: action})
}

// OnCommitAfter sets a trap for the next COMMIT of a connection on which a statement has passed whose text matches: of
// that statement's transaction, however many others run at the same time.
func (p *Proxy) OnCommitAfter(match func(sql string) bool, action Action) *Trap {
	return p.set(&Trap{after: match, match: IsCommit, action: action})
}

// Watch has judge look at every statement; a trap that it returns is sprung by that one. Connections may judge at the
// same time.
func (p *Proxy) Watch(judge func(Passing) *Trap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

// set makes a trap effective, all of it at once.
func (p *Proxy) set(trap *Trap) *Trap {
	trap.fired, trap.release = make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, trap)
	return trap
}

// Withdraw takes a trap back that nothing has sprung, and reports whether it did: otherwise Fired is closed, or will
// be.
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

// Fired is closed once the trap has done its work: the connection is closed, and with DropReply the server has
// answered.
func (t *Trap) Fired() <-chan struct{} { return t.fired }

// Release lets the statement of a Late trap go to the server. The proxy reports nothing of its result.
func (t *Trap) Release() { t.once.Do(func() { close(t.release) }) }

// To sends new connections to the server of another URL, as a name that moves in a failover does; those that exist stay
// where they are (see CutAll). Database, user and options are the clients' own.
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

// CutAll closes every connection at once, on both sides; new ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Pause lets nothing through, in either direction, until Resume: connections stay open and nothing answers.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		p.gate = make(chan struct{})
	default: // paused already
	}
}

// Resume ends a Pause; what was sent meanwhile arrives now.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// Refuse closes new connections at once while on; those that exist are left alone (see CutAll).
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// IsCommit tells whether a text that is sent to Postgres has a statement in it that commits a transaction.
func IsCommit(sql string) bool {
	for word := range commands(sql) {
		if word[0] == "commit" || word[0] == "end" {
			return true
		}
	}
	return false
}

// commands are the statements of a text, as words in lower case, without what is before the first one.
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
		if p.closed {
			l.cut()
		}
		p.mu.Unlock()
		p.wg.Go(l.run)
	}
}

// take returns the trap that this statement springs, if any, and disarms it. passed are those whose condition the
// connection has met, in its open transaction.
func (p *Proxy) take(s Passing, passed map[*Trap]bool) *Trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	sql := s.SQL
	if p.judge != nil {
		if trap := p.judge(s); trap != nil {
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

// flow waits while the proxy is paused; false means that the link is gone.
func (p *Proxy) flow(gone <-chan struct{}) bool {
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
