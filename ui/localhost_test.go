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
		header     string
	}{
		{host: "localhost:9188", from: "127.0.0.1:4000", in: true},
		{host: "127.0.0.1", from: "127.0.0.1:4000", in: true},
		{host: "[::1]:9188", from: "[::1]:4000", in: true},
		{host: "[::1]", from: "[::1]:4000", in: true},
		{host: "evil.example:9188", from: "127.0.0.1:4000", in: false},
		{host: "localhost.evil.example", from: "127.0.0.1:4000", in: false},
		{host: "127.0.0.1:9188", from: "10.0.0.7:4000", in: false},
		{host: "localhost", from: "", in: false},
		{host: "", from: "127.0.0.1:4000", in: false},
		{host: "127.0.0.1:9188", from: "127.0.0.1:4000", header: "X-Forwarded-For"},
		{host: "127.0.0.1:9188", from: "127.0.0.1:4000", header: "X-Forwarded-Host"},
		{host: "127.0.0.1:9188", from: "127.0.0.1:4000", header: "X-Real-Ip"},
		{host: "127.0.0.1:9188", from: "127.0.0.1:4000", header: "Forwarded"},
		{host: "127.0.0.1:9188", from: "127.0.0.1:4000", header: "Via"},
		{host: "127.0.0.1:9188", from: "127.0.0.6:4000", header: "X-Envoy-Internal"},
		{host: "127.0.0.1:9188", from: "127.0.0.1:4000", header: "Accept", in: true},
	} {
		r := &http.Request{Host: c.host, RemoteAddr: c.from, Header: http.Header{}}
		if c.header != "" {
			r.Header.Set(c.header, "203.0.113.9")
		}
		who, err := authorize(r)
		in := err == nil && who == (ui.Identity{Name: "ann", Level: ui.Operate})
		if in != c.in || !in && who.Level != 0 {
			t.Errorf("%q from %q with %q: %+v, %v", c.host, c.from, c.header, who, err)
		}
	}
}
