package roles

import (
	"context"
	"net"
	"time"
)

// dial connects to a broker through this process's proxy, whatever address the cluster advertises.
func (p *process) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if proxy, ok := p.Proxies[address]; ok {
		address = proxy
	}
	d := net.Dialer{Timeout: 2 * time.Second, KeepAlive: 5 * time.Second}
	return d.DialContext(ctx, network, address)
}
