//go:build failpoints

package failpoint

import (
	"context"
	"encoding/binary"
	"net"
)

// Produced puts [PublisherSent] into the connections that dial makes.
func Produced(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &frames{Conn: conn}, nil
	}
}

// frames follows the requests of a connection to Kafka: four bytes of length, two of the kind of request, the rest.
type frames struct {
	net.Conn
	head []byte // of the request that is being written, up to six bytes
	left int64  // bytes of it that are still to come, once its head is there
}

// Write passes p on, and reaches the point after the last byte of each produce request.
func (f *frames) Write(p []byte) (int, error) {
	n, err := f.Conn.Write(p)
	if err != nil {
		return n, err
	}
	for rest := p; len(rest) > 0; {
		if len(f.head) < 6 {
			take := min(6-len(f.head), len(rest))
			f.head, rest = append(f.head, rest[:take]...), rest[take:]
			if len(f.head) == 6 {
				f.left = int64(binary.BigEndian.Uint32(f.head)) - 2
			}
			continue
		}
		take := min(f.left, int64(len(rest)))
		f.left, rest = f.left-take, rest[take:]
		if f.left > 0 {
			continue
		}
		const produce = 0
		kind := binary.BigEndian.Uint16(f.head[4:])
		f.head = f.head[:0]
		if kind == produce {
			if err := process.reach(PublisherSent); err != nil {
				_ = f.Conn.Close()
				return n, err
			}
		}
	}
	return n, nil
}
