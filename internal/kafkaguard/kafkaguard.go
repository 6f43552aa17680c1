// Package kafkaguard checks the answers of brokers before kafka-go decodes them. kafka-go trusts every length in an
// answer: a wrong one makes it panic, or allocate without a bound, in one of its goroutines, which ends the process.
package kafkaguard

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/segmentio/kafka-go/protocol"
)

// mostBytes bounds an answer that kafka-go decodes: a topic may have many partitions, a cluster many brokers.
const mostBytes = 64 << 20

// ErrFalse is wrapped by the error for a malformed answer. The connection cannot be used any more.
var ErrFalse = errors.New("a broker's answer is malformed")

// Dial returns a dialer for a kafka.Transport: its connections return an error for a malformed answer. A
// Transport that uses it must not set TLS. With a nil cfg the connections have no TLS.
func Dial(dial func(ctx context.Context, network, address string) (net.Conn, error), cfg *tls.Config,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if cfg != nil {
			cfg := cfg
			if cfg.ServerName == "" {
				cfg = cfg.Clone()
				if cfg.ServerName, _, err = net.SplitHostPort(address); err != nil {
					return nil, errors.Join(err, nc.Close())
				}
			}
			nc = tls.Client(nc, cfg)
		}
		return &conn{Conn: nc, checks: map[kind]check{}}, nil
	}
}

// conn is a connection to a broker. One goroutine writes requests and reads their answers, as in kafka-go.
type conn struct {
	net.Conn
	head   [12]byte  // of the request that is being written: length, key, version, correlation id
	filled int       // bytes of head
	body   int       // bytes of the request after its head that are still to be written
	asked  []request // without an answer yet
	answer []byte    // checked, and not read yet
	rest   int       // bytes of an answer that its reader checks itself
	checks map[kind]check
	failed error // of all further reads: kafka-go reads on after an error
	opaque bool  // what follows are no messages of the protocol: a SASL exchange as before Kafka 1.0
}

type request struct {
	kind
	correlation [4]byte
}

type kind struct {
	key     protocol.ApiKey
	version int16
}

// Write records which answers will come.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	for b := b[:n]; len(b) > 0 && !c.opaque; {
		if c.body > 0 {
			skip := min(c.body, len(b))
			c.body, b = c.body-skip, b[skip:]
			continue
		}
		some := copy(c.head[c.filled:], b)
		c.filled, b = c.filled+some, b[some:]
		if c.filled < len(c.head) {
			break
		}
		be := binary.BigEndian
		r := request{
			kind{protocol.ApiKey(be.Uint16(c.head[4:])), int16(be.Uint16(c.head[6:]))}, [4]byte(c.head[8:]),
		}
		c.asked = append(c.asked, r)
		c.filled, c.body = 0, int(be.Uint32(c.head[:]))-8
		c.opaque = r.key == protocol.SaslHandshake && r.version == 0
	}
	return n, err
}

// Read reads a checked answer.
func (c *conn) Read(b []byte) (n int, err error) {
	if len(c.answer) == 0 && c.rest == 0 && len(c.asked) > 0 && c.failed == nil {
		c.failed = c.next()
	}
	switch {
	case c.failed != nil:
		return 0, c.failed
	case len(c.answer) > 0:
		n = copy(b, c.answer)
		c.answer = c.answer[n:]
	case c.rest > 0:
		n, err = c.Conn.Read(b[:min(len(b), c.rest)])
		c.rest -= n
	default:
		n, err = c.Conn.Read(b)
		if !c.opaque && n > 0 {
			c.failed = fmt.Errorf("%w: it belongs to no request", ErrFalse)
			return 0, c.failed
		}
	}
	return n, err
}

// next reads the answer to the oldest request, or the beginning of an answer that its reader checks itself.
func (c *conn) next() error {
	var head [8]byte
	if _, err := io.ReadFull(c.Conn, head[:4]); err != nil {
		return err
	}
	r, size := c.asked[0], int(int32(binary.BigEndian.Uint32(head[:])))
	check, ok := c.checks[r.kind]
	if !ok {
		check = checkOf(r.kind)
		c.checks[r.kind] = check
	}
	if size < 4 || check != nil && size > mostBytes {
		return fmt.Errorf("%w: its length is %d, so this may be no broker, or one that expects TLS", ErrFalse, size)
	}
	if _, err := io.ReadFull(c.Conn, head[4:]); err != nil {
		return cutOff(err)
	}
	if [4]byte(head[4:]) != r.correlation {
		return fmt.Errorf("%w: it is not that of the %v request", ErrFalse, r.key)
	}
	c.asked = c.asked[1:]
	c.answer = append([]byte(nil), head[:]...)
	if check == nil {
		c.rest = size - 4
		return nil
	}
	// The buffer grows by the bytes received, not by the length in the answer.
	answer := bytes.NewBuffer(c.answer)
	if _, err := io.CopyN(answer, c.Conn, int64(size-4)); err != nil {
		return cutOff(err)
	}
	c.answer = answer.Bytes()
	if rest := (reader{b: c.answer[len(head):]}); !check(&rest) {
		return fmt.Errorf("%w: that of the %v request, version %d", ErrFalse, r.key, r.version)
	}
	return nil
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
