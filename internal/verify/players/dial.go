package players

import (
	"context"
	"net"
	"time"
)

// dial goes to a broker by way of the player's own proxy, whatever address the cluster advertises.
func (p *player) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if via, ok := p.Through[address]; ok {
		address = via
	}
	d := net.Dialer{Timeout: 2 * time.Second, KeepAlive: 5 * time.Second}
	return d.DialContext(ctx, network, address)
}
