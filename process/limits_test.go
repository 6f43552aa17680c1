package process_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/process"
)

// pipes is a listener whose connections are in memory, so that time-outs pass at once in a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

const request = "GET / HTTP/1.1\r\nHost: here\r\n"

// TestLimits: whoever sends nothing, too little, or too much is sent away, and holds no connection for ever.
func TestLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		send   func(c net.Conn)
		answer string
		within time.Duration
	}{
		"silence":   {func(net.Conn) {}, "", 5 * time.Second},
		"slow head": {func(c net.Conn) { drip(c, request+"X: ") }, "", 5 * time.Second},
		"slow body": {
			func(c net.Conn) { drip(c, request+"Content-Length: 1000\r\n\r\n") }, "read 1",
			15 * time.Second,
		},
		"idle after": {func(c net.Conn) { _, _ = io.WriteString(c, request+"\r\n") }, "read 0 bytes", time.Minute},
		"large head": {func(c net.Conn) {
			_, _ = io.WriteString(c, request+"X: "+strings.Repeat("x", 80<<10)+
				"\r\n\r\n")
		}, "431", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &pipes{make(chan net.Conn), make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- process.Serve(ctx, l, http.HandlerFunc(count)) }()
				conn, began := l.dial(), time.Now()
				sent := make(chan struct{})
				go func() { c.send(conn); close(sent) }()
				got, _ := io.ReadAll(conn) // until the server closes
				if !strings.Contains(string(got), c.answer) {
					t.Errorf("answered %q, want %q", got, c.answer)
				}
				if took := time.Since(began); took > c.within+time.Second {
					t.Errorf("held for %v", took)
				}
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
				_ = conn.Close()
				<-sent
			})
		})
	}
}

// drip sends the head of something at once, and what should follow one byte a second.
func drip(c net.Conn, head string) {
	_, err := io.WriteString(c, head)
	for err == nil {
		<-time.After(time.Second)
		_, err = c.Write([]byte("x"))
	}
}

func count(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(bufio.NewReader(r.Body))
	_, _ = fmt.Fprintf(w, "read %d bytes", len(b))
}
