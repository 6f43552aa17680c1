package pgtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
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

	mu       sync.Mutex
	asked    int           // ReadyForQuery messages that the server owes in all, the one after the start included
	answered int           // those it has sent
	muteFrom int           // replies after this many of them are not passed on
	settled  chan struct{} // closed when everything asked is answered; made by finish
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
		return l.proxy.take(sql, l.passed)
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
		portal, _ := text(body)
		return l.proxy.take(l.portals[portal], l.passed)
	}
	return nil
}

func (l *link) ask() {
	l.mu.Lock()
	l.asked++
	l.mu.Unlock()
}

// spring does what the trap says; the link ends after it.
func (l *link) spring(trap *Trap, message []byte) {
	switch trap.action {
	case CutBefore:
		l.cut()
		close(trap.fired)
	case DropReply:
		l.finish(message)
		l.awaitAnswer()
		l.cut()
		close(trap.fired)
	case CutAfter:
		l.finish(message)
		l.hangUp()
		close(trap.fired)
		l.awaitAnswer()
	case Late:
		l.proxy.late.Store(true)
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

// finish sends the last message of this link and passes nothing of its answer on. An Execute gets the Sync that makes
// the server act on it; the client's own, and what it pipelined in between, is not sent any more.
func (l *link) finish(message []byte) {
	if message[0] == 'E' {
		message = append(message, 'S', 0, 0, 0, 4)
		l.ask()
	}
	l.mu.Lock()
	l.muteFrom = min(l.muteFrom, l.asked-1)
	l.settled = make(chan struct{})
	l.mu.Unlock()
	if _, err := l.server.Write(message); err != nil {
		l.cut()
	}
}

func (l *link) awaitAnswer() {
	select {
	case <-l.settled:
	case <-l.gone:
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
		if kind == 'Z' {
			l.answer()
		}
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

func (l *link) answer() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered++
	if l.settled != nil && l.answered == l.asked {
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
