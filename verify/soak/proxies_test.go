package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// proxies are the network: one for each process and server.
type proxies struct {
	server *toxiproxy.ApiServer
	mu     sync.Mutex
	all    map[string]*toxiproxy.Proxy // "relay-1/postgres", "relay-1/kafka-0"
	toxics int
}

func newProxies(t *testing.T) *proxies {
	zerolog.SetGlobalLevel(zerolog.Disabled) // it logs every interruption
	p := &proxies{
		server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
		all:    map[string]*toxiproxy.Proxy{},
	}
	t.Cleanup(func() {
		for _, one := range p.all {
			one.Toxics.ResetToxics(context.Background())
			one.Stop()
		}
	})
	return p
}

// add starts a proxy and returns its address.
func (p *proxies) add(t *testing.T, name, upstream string) string {
	t.Helper()
	one := toxiproxy.NewProxy(p.server, name, "127.0.0.1:0", upstream)
	if err := one.Start(); err != nil {
		t.Fatalf("proxy %s: %v", name, err)
	}
	p.all[name] = one
	return one.Listen
}

// poison adds a toxic to some of the proxies, until undo.
func (p *proxies) poison(names []string, sort, stream string, toxicity float64, attributes map[string]int64) (
	heal func() error, err error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toxics++
	name := fmt.Sprintf("toxic-%d", p.toxics)
	text, err := json.Marshal(map[string]any{
		"name": name, "type": sort, "stream": stream, "toxicity": toxicity,
		"attributes": attributes,
	})
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		one, ok := p.all[n]
		if !ok {
			return nil, fmt.Errorf("no proxy is called %s", n)
		}
		if _, err := one.Toxics.AddToxicJson(bytes.NewReader(text)); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", sort, n, err)
		}
	}
	return func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		var first error
		for _, n := range names {
			if err := p.all[n].Toxics.RemoveToxic(context.Background(), name); err != nil && first == nil {
				first = err
			}
		}
		return first
	}, nil
}
