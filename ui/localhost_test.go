package ui_test

import (
	"net/http"
	"testing"

	"github.com/effectonce/effectonce/ui"
)

func TestLocalhost(t *testing.T) {
	t.Parallel()
	authorize := ui.Localhost("ann")
	for _, c := range []struct {
		host, from string
		in         bool
	}{
		{"localhost:9188", "127.0.0.1:4000", true},
		{"127.0.0.1", "127.0.0.1:4000", true},
		{"[::1]:9188", "[::1]:4000", true},
		{"[::1]", "[::1]:4000", true},
		{"evil.example:9188", "127.0.0.1:4000", false},
		{"localhost.evil.example", "127.0.0.1:4000", false},
		{"127.0.0.1:9188", "10.0.0.7:4000", false},
		{"localhost", "", false},
		{"", "127.0.0.1:4000", false},
	} {
		who, err := authorize(&http.Request{Host: c.host, RemoteAddr: c.from})
		in := err == nil && who == (ui.Identity{Name: "ann", Level: ui.Operate})
		if in != c.in || !in && who.Level != 0 {
			t.Errorf("%q from %q: %+v, %v", c.host, c.from, who, err)
		}
	}
}
