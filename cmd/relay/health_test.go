package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/process"
)

// TestHealth: the exit code follows the page's status, whatever address the relay listens on.
func TestHealth(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(process.Health{
		Ready: func(context.Context) error { return errors.New("no Postgres") },
	}.Handler())
	t.Cleanup(server.Close) // after the parallel subtests
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		listen string
		args   []string
		code   int
		says   string
	}{
		"well":          {listen: "127.0.0.1:" + port, says: "ok"},
		"every address": {listen: ":" + port, says: "ok"},
		"every IPv4":    {listen: "0.0.0.0:" + port, says: "ok"},
		"not ready":     {listen: ":" + port, args: []string{"--ready"}, code: codeFailed, says: "no Postgres"},
		"not ready, JSON": {
			listen: ":" + port, args: []string{"--ready", "--json"}, code: codeFailed, says: `"status": 503`,
		},
		"closed":            {listen: gone.Listener.Addr().String(), code: codeFailed, says: "nothing answers at 127."},
		"listens nowhere":   {listen: "off", code: codeUsage, says: "cannot be asked"},
		"without a port":    {listen: "localhost", code: codeUsage, says: "want host:port"},
		"no database's":     {listen: ":" + port, args: []string{"--schema=app"}, code: codeUsage, says: "--schema"},
		"not a host at all": {listen: "a b:1", code: codeUsage, says: "want host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := environment{"RELAY_LISTEN": c.listen}
			code, stdout, stderr := command(t, env, append([]string{"health"}, c.args...)...)
			if code != c.code || !strings.Contains(stdout+stderr, c.says) {
				t.Errorf("exit code %d, want %d and %q: %s%s", code, c.code, c.says, stdout, stderr)
			}
		})
	}
}

func TestDialled(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"[::]:1": "[::1]:1", "0.0.0.0:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "10.1.2.3:1": "10.1.2.3:1",
		"here:1": "here:1",
	} {
		if got, err := dialled(listen); err != nil || got != want {
			t.Errorf("dialled(%q) = %q, %v; want %q", listen, got, err, want)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	code, text, stderr := command(t, environment{}, "version")
	if code != codeOK || !strings.HasSuffix(text, runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH+"\n") {
		t.Errorf("exit code %d: %q %s", code, text, stderr)
	}
	if _, short, _ := command(t, environment{}, "--version"); !strings.HasPrefix(text, strings.TrimSpace(short)) {
		t.Errorf("version is %q, and --version %q", text, short)
	}
}
