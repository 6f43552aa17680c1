// Package netcut is a TCP proxy with faults for tests: toxiproxy within the test's process.
package netcut

import (
	"context"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxy forwards TCP to a server until the end of the test.
type Proxy struct{ proxy *toxiproxy.Proxy }

// New starts a proxy for the server at upstream.
func New(t testing.TB, upstream string) *Proxy {
	t.Helper()
	quiet := zerolog.Nop()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), quiet)
	p := toxiproxy.NewProxy(server, "server", "127.0.0.1:0", upstream)
	p.Logger = &quiet
	if err := p.Start(); err != nil {
		t.Fatalf("netcut: %v", err)
	}
	t.Cleanup(func() {
		p.Toxics.ResetToxics(context.Background())
		p.Stop()
	})
	return &Proxy{p}
}

// Addr returns the proxy's address.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// DropReplies forwards requests, and closes each connection instead of forwarding its reply, until heal is called.
func (p *Proxy) DropReplies(t testing.TB) (heal func()) {
	t.Helper()
	return p.poison(t,
		`{"name": "cut", "type": "limit_data", "stream": "downstream", "toxicity": 1, "attributes": {"bytes": 0}}`)
}

// Silence keeps connections open and lets nothing come back from the server, until heal is called; what was sent
// meanwhile is lost.
func (p *Proxy) Silence(t testing.TB) (heal func()) {
	t.Helper()
	return p.poison(t,
		`{"name": "cut", "type": "timeout", "stream": "downstream", "toxicity": 1, "attributes": {"timeout": 0}}`)
}

// Cut closes all connections and refuses new ones, until heal is called.
func (p *Proxy) Cut(t testing.TB) (heal func()) {
	t.Helper()
	p.proxy.Stop()
	return func() {
		if err := p.proxy.Start(); err != nil {
			t.Errorf("netcut: %v", err)
		}
	}
}

func (p *Proxy) poison(t testing.TB, toxic string) (heal func()) {
	t.Helper()
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		t.Fatalf("netcut: %v", err)
	}
	return func() {
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), "cut"); err != nil {
			t.Errorf("netcut: %v", err)
		}
	}
}
