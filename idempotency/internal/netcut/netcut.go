// Package netcut puts a network that fails on demand between a test's client and its server: toxiproxy, in the test's
// process.
package netcut

import (
	"context"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxy passes TCP on to one server. It ends with the test.
type Proxy struct{ proxy *toxiproxy.Proxy }

// New starts a proxy for the server at the address upstream.
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

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// DropReplies lets what is sent reach the server, and closes each connection instead of passing on its answer, until
// heal is called.
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

// Cut ends all connections and refuses new ones, until heal is called.
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
