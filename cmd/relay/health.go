package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/process"
)

type healthCommand struct {
	Listen string `default:"127.0.0.1:9187" help:"Where the relay listens: its own --listen."`
	Ready  bool   `line:"" help:"Ask /readyz instead of /healthz."`
	jsonFlag
}

// Help is the longer text of --help.
func (*healthCommand) Help() string {
	return `Exit code 0: the answer was 200; 1: it was another one, or there was none within four seconds. For images without a shell,
which have no other client. Let restarts depend on /healthz: it stays 200 while Postgres or Kafka is unavailable.`
}

func (*healthCommand) noDatabase() {}

func (c *healthCommand) run(ctx context.Context, p *program) error {
	address, err := dialled(c.Listen)
	if err != nil {
		return err
	}
	page := "/healthz"
	if c.Ready {
		page = "/readyz"
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+page, nil)
	if err != nil {
		return service.Usage("--listen %q: want host:port", c.Listen)
	}
	// Without a proxy of the environment: the server is this machine.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("nothing answers at %s: %w", address, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", address, err)
	}
	said := strings.TrimSpace(string(body))
	if c.JSON || response.StatusCode == http.StatusOK {
		err = c.report(p, map[string]any{"page": page, "status": response.StatusCode, "answer": said}, "%s", said)
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(page + ": " + response.Status + ": " + said)
	}
	return err
}

// dialled returns the address to connect to for a listen address: this machine's if it listens on all.
func dialled(listen string) (string, error) {
	if listen == process.Off {
		return "", service.Usage("--listen=%s: the relay listens nowhere, and cannot be asked", process.Off)
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", service.Usage("--listen %q: want host:port", listen)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port), nil
}
