package answers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kind is a request as one of the clients sends it.
type kind struct {
	client       string
	key, version int16
}

func (k kind) String() string {
	return fmt.Sprintf("%s %sv%d", k.client, kmsg.NameForKey(k.key), k.version)
}

// proxy stands between the clients and a broker. It is where Dial connects to, whatever address the broker names.
type proxy struct {
	listener net.Listener
	broker   func() (net.Conn, error)
	done     sync.WaitGroup

	mu    sync.Mutex
	links map[*link]bool
	seen  map[kind][]byte // the longest answer of each kind
	spoil *spoil          // nil: every answer is passed on
}

func newProxy(broker func() (net.Conn, error)) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, broker: broker, links: map[*link]bool{}, seen: map[kind][]byte{}}
	p.done.Go(p.accept)
	return p, nil
}

// dial takes the place of a client's own dialer.
func (p *proxy) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, p.listener.Addr().String())
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.cut()
	p.done.Wait()
}

// cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.cut()
	}
}

// take returns what was seen since the last call.
func (p *proxy) take() map[kind][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = map[kind][]byte{}
	return seen
}

func (p *proxy) set(s *spoil) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spoil = s
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := p.broker()
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{proxy: p, client: client, server: server, gone: make(chan struct{})}
		p.mu.Lock()
		p.links[l] = true
		p.mu.Unlock()
		p.done.Go(l.requests)
		p.done.Go(l.answers)
	}
}

// spoil spoils the answers to requests of a kind: one, or those within a time.
type spoil struct {
	kind kind
	way  way
	last time.Duration // 0: one answer

	mu    sync.Mutex
	hits  int
	first chan struct{} // closed at the first
	until time.Time
}

func newSpoil(k kind, w way, last time.Duration) *spoil {
	return &spoil{kind: k, way: w, last: last, first: make(chan struct{})}
}

// claim counts a hit, if there is to be one.
func (s *spoil) claim() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.hits > 0 && (s.last == 0 || now.After(s.until)) {
		return false
	}
	if s.hits++; s.hits == 1 {
		s.until = now.Add(s.last)
		close(s.first)
	}
	return true
}

func (s *spoil) ends() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (s *spoil) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits
}

// link is one connection, and the requests on it that have no answer yet.
type link struct {
	proxy          *proxy
	client, server net.Conn
	gone           chan struct{}
	once           sync.Once

	mu    sync.Mutex
	asked []asked
}

type asked struct {
	kind        kind
	correlation [4]byte
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.client.Close()
		_ = l.server.Close()
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	})
}

// requests forwards frames of length, key (2 bytes), version (2), correlation id (4), client id, and the rest.
func (l *link) requests() {
	defer l.cut()
	for {
		frame, err := readFrame(l.client)
		if err != nil || len(frame) < 14 {
			return
		}
		be := binary.BigEndian
		k := kind{key: int16(be.Uint16(frame[4:])), version: int16(be.Uint16(frame[6:]))}
		if n := int(int16(be.Uint16(frame[12:]))); n > 0 && 14+n <= len(frame) {
			k.client = string(frame[14 : 14+n])
		}
		l.mu.Lock()
		l.asked = append(l.asked, asked{k, [4]byte(frame[8:12])})
		l.mu.Unlock()
		if _, err := l.server.Write(frame); err != nil {
			return
		}
	}
}

// answers forwards frames of length, correlation id (4), and the rest. They come in the order of the requests.
func (l *link) answers() {
	defer l.cut()
	for {
		frame, err := readFrame(l.server)
		if err != nil || len(frame) < 8 {
			return
		}
		l.mu.Lock()
		if len(l.asked) == 0 || [4]byte(frame[4:8]) != l.asked[0].correlation {
			l.mu.Unlock()
			return
		}
		k := l.asked[0].kind
		l.asked = l.asked[1:]
		l.mu.Unlock()
		if !l.pass(k, frame) {
			return
		}
	}
}

// pass passes an answer on, or what it is spoilt to. It returns false if the connection ends with it.
func (l *link) pass(k kind, frame []byte) bool {
	p := l.proxy
	p.mu.Lock()
	if len(frame) > len(p.seen[k]) {
		p.seen[k] = frame
	}
	s := p.spoil
	p.mu.Unlock()
	if s != nil && s.kind == k {
		if spoilt, ok := s.way.spoil(k, slices.Clone(frame)); ok && s.claim() {
			if s.way.wait > 0 {
				select {
				case <-time.After(s.way.wait):
				case <-l.gone:
				}
			}
			_, err := l.client.Write(spoilt)
			return err == nil && !s.way.ends
		}
	}
	_, err := l.client.Write(frame)
	return err == nil
}

func readFrame(from io.Reader) ([]byte, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(frame)
	if size > 1<<30 {
		return nil, errors.New("not a message of the protocol")
	}
	frame = append(frame, make([]byte, size)...)
	_, err := io.ReadFull(from, frame[4:])
	return frame, err
}
