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

	// Statement texts by the names of prepared statements and portals.
	statements, portals map[string]string
	passed              map[*Trap]bool // see Proxy.take
	transaction         []string       // see Passing
	open                bool           // likewise

	mu            sync.Mutex
	asked         int           // expected ReadyForQuery messages, the one after the startup included
	answered      int           // received ReadyForQuery messages
	executed      int           // Execute messages since the last Sync
	done          int           // completed Executes since the last ReadyForQuery
	muteAfter     int           // replies after this many ReadyForQuery messages are not forwarded
	settled       chan struct{} // closed when all requests are answered; made by finish
	settledClosed bool
	failed        bool // the server skips messages up to the next Sync
	refused       bool // the server has answered the last message with an error
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{
		proxy: p, client: client, server: server, gone: make(chan struct{}), muteAfter: math.MaxInt,
		statements: map[string]string{}, portals: map[string]string{}, passed: map[*Trap]bool{},
	}
}

// maxMessage bounds a protocol message. A larger one means that the stream was misread.
const maxMessage = 1 << 30

func (l *link) cut() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// run forwards messages until both directions have ended.
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

// start forwards the startup message, which has no type byte. A cancel request has no other message: start returns an
// error for it.
func (l *link) start() error {
	var head [4]byte
	if _, err := io.ReadFull(l.client, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 8 || size > maxMessage {
		return errors.New("not a startup message")
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(l.client, body); err != nil {
		return err
	}
	if !l.proxy.awaitResume(l.gone) {
		return net.ErrClosed
	}
	const cancelRequest = 80877102
	cancels := binary.BigEndian.Uint32(body) == cancelRequest
	if cancels && l.proxy.uncancelled.Load() {
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

// upstream forwards the client's messages until a trap fires.
func (l *link) upstream() {
	for {
		kind, message, err := read(l.client)
		if err != nil || !l.proxy.awaitResume(l.gone) {
			return
		}
		if trap := l.watch(kind, message[5:]); trap != nil {
			l.fire(trap, message)
			return
		}
		if _, err := l.server.Write(message); err != nil {
			return
		}
	}
}

// watch tracks statements, and returns the trap that fires at this message.
func (l *link) watch(kind byte, body []byte) *Trap {
	switch kind {
	case 'Q':
		l.addRequest()
		sql, _ := text(body)
		return l.take(sql)
	case 'S': // Sync
		l.addRequest()
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

// take returns the trap of a statement, and tracks the transaction.
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

func (l *link) addRequest() {
	l.mu.Lock()
	l.asked++
	l.executed = 0
	l.mu.Unlock()
}

// fire runs the trap's action, which ends the link.
func (l *link) fire(trap *Trap, message []byte) {
	switch trap.action {
	case CutBefore:
		trap.report(true)
		l.cut()
		close(trap.fired)
	case DropReply:
		l.finish(message)
		trap.report(l.awaitAnswer())
		l.cut()
		close(trap.fired)
	case CutAfter:
		l.finish(message)
		l.proxy.uncancelled.Store(true)
		trap.report(true)
		l.hangUp()
		close(trap.fired)
		l.awaitAnswer()
	case Late:
		l.proxy.uncancelled.Store(true)
		trap.report(true)
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

func (t *Trap) report(done bool) {
	if t.then != nil {
		t.then(done)
	}
}

// finish sends the last message of this link and does not forward the reply. Messages that the client pipelined behind
// it are dropped. An Execute needs another message before the server replies: the client's Sync if it comes next, which
// commits a transaction without BEGIN, otherwise a Flush.
func (l *link) finish(message []byte) {
	muteAfter := -1 // forward only the replies to earlier requests
	if message[0] == 'E' {
		last := byte('H')
		if kind, _, err := read(l.client); err != nil || kind == 'S' {
			last = 'S'
			l.addRequest()
		} else {
			muteAfter = 0
		}
		message = append(message, last, 0, 0, 0, 4)
	}
	l.mu.Lock()
	l.muteAfter = min(l.muteAfter, l.asked+muteAfter)
	l.settled, l.refused = make(chan struct{}), l.failed
	l.mu.Unlock()
	if _, err := l.server.Write(message); err != nil {
		l.cut()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if message[0] == 'd' && !l.settledClosed { // has no reply
		l.settledClosed = true
		close(l.settled)
	}
	l.settle()
}

// awaitAnswer reports whether the server has executed the message of finish.
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

// downstream forwards the server's messages, and counts its replies.
func (l *link) downstream() {
	for {
		kind, message, err := read(l.server)
		if err != nil {
			return
		}
		if !l.muted() {
			if !l.proxy.awaitResume(l.gone) {
				return
			}
			// After hangUp the write fails; go on counting replies.
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
	l.muteAfter = -1
	l.mu.Unlock()
	_ = l.client.Close()
}

func (l *link) muted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered >= l.muteAfter
}

// answer counts a message of the server.
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

// settle closes settled once all requests are answered. An Execute before a Flush gets no ReadyForQuery, and messages
// after an error get no reply.
func (l *link) settle() {
	if l.settled != nil && !l.settledClosed && l.answered == l.asked && (l.failed || l.done >= l.executed) {
		l.settledClosed = true
		close(l.settled)
	}
}

// read returns one message with its type byte and length.
func read(from io.Reader) (kind byte, message []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > maxMessage {
		return 0, nil, errors.New("not a message of the protocol")
	}
	message = make([]byte, 1+size)
	copy(message, head[:])
	_, err = io.ReadFull(from, message[5:])
	return head[0], message, err
}

// text splits off a zero-terminated string.
func text(b []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(b, []byte{0})
	return string(s), rest
}
