package roles

import (
	"context"
	"net"
	"time"
)

// dial goes to a broker by way of the process's own proxy, whatever address the cluster advertises.
func (p *process) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if via, ok := p.Through[address]; ok {
		address = via
	}
	d := net.Dialer{Timeout: 2 * time.Second, KeepAlive: 5 * time.Second}
	return d.DialContext(ctx, network, address)
}
