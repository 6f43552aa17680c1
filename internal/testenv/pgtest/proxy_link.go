package pgtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"sync"
)

// link is one connection through a Proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	gone           chan struct{} // closed by cut
	once           sync.Once

	// What the client told the server: prepared statements by name, portals by name, both to the statement's text.
	statements, portals map[string]string
	passed              map[*Trap]bool // see Proxy.take
	transaction         []string       // see Passing
	open                bool           // likewise

	mu       sync.Mutex
	asked    int           // ReadyForQuery messages that the server owes in all, the one after the start included
	answered int           // those it has sent
	executed int           // Execute messages since the last Sync
	done     int           // those whose end the server has told, since its last ReadyForQuery
	muteFrom int           // replies after this many ReadyForQuery are not passed on
	settled  chan struct{} // closed when everything asked is answered; made by finish
	told     bool          // settled is closed
	failed   bool          // the server passes over all messages up to the next Sync
	refused  bool          // something of it was answered by an error
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{
		proxy: p, client: client, server: server, gone: make(chan struct{}), muteFrom: math.MaxInt,
		statements: map[string]string{}, portals: map[string]string{}, passed: map[*Trap]bool{},
	}
}

// largest is a bound on one protocol message; a larger one means that the stream is not what we think it is.
const largest = 1 << 30

func (l *link) cut() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// run returns when both directions have ended.
func (l *link) run() {
	down := make(chan struct{})
	if err := l.start(); err == nil {
		go func() {
			defer close(down)
			defer l.cut()
			l.downstream()
		}()
		l.upstream()
		l.cut()
		<-down
	}
	l.cut()
	l.proxy.mu.Lock()
	delete(l.proxy.links, l)
	l.proxy.mu.Unlock()
}

// start passes the first message on, which has no type byte. A cancel request is only that message: it ends in an
// error.
func (l *link) start() error {
	var head [4]byte
	if _, err := io.ReadFull(l.client, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 8 || size > largest {
		return errors.New("not a startup message")
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(l.client, body); err != nil {
		return err
	}
	if !l.proxy.flow(l.gone) {
		return net.ErrClosed
	}
	const cancelRequest = 80877102
	cancels := binary.BigEndian.Uint32(body) == cancelRequest
	if cancels && l.proxy.late.Load() {
		return io.EOF
	}
	if _, err := l.server.Write(append(head[:], body...)); err != nil {
		return err
	}
	if cancels {
		_, err := io.Copy(io.Discard, l.server)
		return errors.Join(io.EOF, err)
	}
	l.asked = 1
	return nil
}

// upstream passes the client's messages on until one springs a trap.
func (l *link) upstream() {
	for {
		kind, message, err := read(l.client)
		if err != nil || !l.proxy.flow(l.gone) {
			return
		}
		if trap := l.watch(kind, message[5:]); trap != nil {
			l.spring(trap, message)
			return
		}
		if _, err := l.server.Write(message); err != nil {
			return
		}
	}
}

// watch follows the messages that carry or name statements, and returns the trap that this one springs.
func (l *link) watch(kind byte, body []byte) *Trap {
	switch kind {
	case 'Q':
		l.ask()
		sql, _ := text(body)
		return l.take(sql)
	case 'S': // Sync
		l.ask()
	case 'P': // Parse: name, text
		name, rest := text(body)
		l.statements[name], _ = text(rest)
	case 'B': // Bind: portal, statement's name
		portal, rest := text(body)
		name, _ := text(rest)
		l.portals[portal] = l.statements[name]
	case 'E': // Execute: portal
		l.mu.Lock()
		l.executed++
		l.mu.Unlock()
		portal, _ := text(body)
		return l.take(l.portals[portal])
	case 'd': // CopyData
		if len(body) > 0 && body[0] == 'r' {
			return l.take(StandbyStatus)
		}
	}
	return nil
}

// take asks for the trap of a statement, and follows the transaction that it begins, ends or stands in.
func (l *link) take(sql string) *Trap {
	trap := l.proxy.take(Passing{SQL: sql, Transaction: slices.Clone(l.transaction), Open: l.open}, l.passed)
	l.transaction = append(l.transaction, sql)
	for word := range commands(sql) {
		switch {
		case word[0] == "begin", word[0] == "start":
			l.open, l.transaction = true, nil
		case word[0] == "commit", word[0] == "end", word[0] == "rollback" && !slices.Contains(word, "to"):
			l.open = false
		}
	}
	if !l.open {
		l.transaction = nil
	}
	return trap
}

func (l *link) ask() {
	l.mu.Lock()
	l.asked++
	l.executed = 0
	l.mu.Unlock()
}

// spring does what the trap says; the link ends after it.
func (l *link) spring(trap *Trap, message []byte) {
	switch trap.action {
	case CutBefore:
		trap.tell(true)
		l.cut()
		close(trap.fired)
	case DropReply:
		l.finish(message)
		trap.tell(l.awaitAnswer())
		l.cut()
		close(trap.fired)
	case CutAfter:
		l.finish(message)
		trap.tell(true)
		l.hangUp()
		close(trap.fired)
		l.awaitAnswer()
	case Late:
		l.proxy.late.Store(true)
		trap.tell(true)
		l.hangUp()
		close(trap.fired)
		select {
		case <-trap.release:
			l.finish(message)
			l.awaitAnswer()
		case <-l.gone:
		}
	}
}

func (t *Trap) tell(done bool) {
	if t.then != nil {
		t.then(done)
	}
}

// finish sends the last message of this link and passes nothing of its answer on. What the client pipelined behind it
// is not sent any more. An Execute needs one more message before the server answers: the client's own Sync where that
// comes next, for it commits what no BEGIN has opened; otherwise a Flush.
func (l *link) finish(message []byte) {
	muteFrom := -1 // nothing more is passed on but what was asked before
	if message[0] == 'E' {
		last := byte('H')
		if kind, _, err := read(l.client); err != nil || kind == 'S' {
			last = 'S'
			l.ask()
		} else {
			muteFrom = 0
		}
		message = append(message, last, 0, 0, 0, 4)
	}
	l.mu.Lock()
	l.muteFrom = min(l.muteFrom, l.asked+muteFrom)
	l.settled, l.refused = make(chan struct{}), l.failed
	l.mu.Unlock()
	if _, err := l.server.Write(message); err != nil {
		l.cut()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if message[0] == 'd' && !l.told { // nobody answers it
		l.told = true
		close(l.settled)
	}
	l.settle()
}

// awaitAnswer reports whether the server has done what finish sent.
func (l *link) awaitAnswer() bool {
	select {
	case <-l.settled:
		l.mu.Lock()
		defer l.mu.Unlock()
		return !l.refused
	case <-l.gone:
		return false
	}
}

// downstream passes the server's messages on, and counts its answers.
func (l *link) downstream() {
	for {
		kind, message, err := read(l.server)
		if err != nil {
			return
		}
		if !l.muted() {
			if !l.proxy.flow(l.gone) {
				return
			}
			// A client that was hung up on meanwhile gets nothing; the server's answer still matters.
			if _, err := l.client.Write(message); err != nil && !l.muted() {
				return
			}
		}
		l.answer(kind)
	}
}

// hangUp closes the client's side only.
func (l *link) hangUp() {
	l.mu.Lock()
	l.muteFrom = -1
	l.mu.Unlock()
	_ = l.client.Close()
}

func (l *link) muted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered >= l.muteFrom
}

// answer counts what the server has told, by the kind of its message.
func (l *link) answer(kind byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch kind {
	case 'Z': // ReadyForQuery
		l.answered++
		l.done, l.failed = 0, false
	case 'C', 'I', 's': // CommandComplete, EmptyQueryResponse, PortalSuspended
		l.done++
	case 'E': // ErrorResponse
		l.failed = true
		l.refused = l.settled != nil
	}
	l.settle()
}

// settle closes settled once everything asked is answered. What is behind a Flush gets no ReadyForQuery, and what is
// behind an error no answer at all.
func (l *link) settle() {
	if l.settled != nil && !l.told && l.answered == l.asked && (l.failed || l.done >= l.executed) {
		l.told = true
		close(l.settled)
	}
}

// read returns one message, with its type byte and length in front.
func read(from io.Reader) (kind byte, message []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > largest {
		return 0, nil, errors.New("not a message of the protocol")
	}
	message = make([]byte, 1+size)
	copy(message, head[:])
	_, err = io.ReadFull(from, message[5:])
	return head[0], message, err
}

// text cuts a zero-terminated string off the front.
func text(b []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(b, []byte{0})
	return string(s), rest
}
