package proof

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafkaProxy is a proxy between a process and the broker. judge chooses the fault at each request; see register.at.
type kafkaProxy struct {
	listener net.Listener
	broker   string
	judge    func(kind string) (fault, func(tookEffect bool))
	wg       sync.WaitGroup
}

func newKafkaProxy(t *testing.T, broker string, judge func(kind string) (fault, func(tookEffect bool))) *kafkaProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &kafkaProxy{listener: l, broker: broker, judge: judge}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.wg.Wait() // its clients have ended
	})
	return p
}

func (p *kafkaProxy) addr() string { return p.listener.Addr().String() }

func (p *kafkaProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", p.broker)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &kafkaLink{proxy: p, client: client, server: server}
		p.wg.Go(l.requests)
		p.wg.Go(l.answers)
	}
}

// kafkaLink is one connection.
type kafkaLink struct {
	proxy          *kafkaProxy
	client, server net.Conn

	mu   sync.Mutex
	last []byte                // the correlation id of the reply to drop
	done func(tookEffect bool) // is called when it is dropped; nil: no fault is in progress
}

func (l *kafkaLink) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
	l.mu.Lock()
	done := l.done
	l.done = nil
	l.mu.Unlock()
	if done != nil {
		done(false)
	}
}

// requests forwards frames of length, kind (2 bytes), version (2), correlation id (4), and the rest.
func (l *kafkaLink) requests() {
	defer l.cut()
	for {
		frame, err := readFrame(l.client)
		if err != nil || len(frame) < 12 {
			return
		}
		kind := kmsg.NameForKey(int16(binary.BigEndian.Uint16(frame[4:])))
		switch do, done := l.proxy.judge(kind); do {
		case before:
			done(true)
			return
		case after:
			l.mu.Lock()
			l.last, l.done = frame[8:12], done
			l.mu.Unlock()
		}
		if _, err := l.server.Write(frame); err != nil {
			return
		}
	}
}

// answers forwards frames of length, correlation id (4), and the rest.
func (l *kafkaLink) answers() {
	defer l.cut()
	for {
		frame, err := readFrame(l.server)
		if err != nil || len(frame) < 8 {
			return
		}
		l.mu.Lock()
		done := l.done
		if done != nil && string(frame[4:8]) == string(l.last) {
			l.done = nil
		} else {
			done = nil
		}
		l.mu.Unlock()
		if done != nil {
			done(true)
			return
		}
		if _, err := l.client.Write(frame); err != nil {
			return
		}
	}
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
