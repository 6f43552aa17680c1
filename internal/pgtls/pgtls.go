// Package pgtls tells what of a connection to Postgres is not encrypted.
package pgtls

import (
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/loopback"
)

// PlainText names a host of another machine to which the configuration may connect without encryption, as sslmode's
// default (prefer) does where the server, or somebody between, says that it has none. It is "" when there is no such
// host.
func PlainText(cfg *pgx.ConnConfig) string {
	for _, way := range ways(cfg) {
		if way.TLSConfig == nil && !here(way.Host) {
			return way.Host
		}
	}
	return ""
}

// Disabled names a host of another machine to which the configuration never speaks TLS; "" when there is none.
func Disabled(cfg *pgx.ConnConfig) string {
	encrypts := map[string]bool{}
	for _, way := range ways(cfg) {
		encrypts[way.Host] = encrypts[way.Host] || way.TLSConfig != nil
	}
	for _, way := range ways(cfg) {
		if !encrypts[way.Host] && !here(way.Host) {
			return way.Host
		}
	}
	return ""
}

// ways are all that pgx tries, in its order.
func ways(cfg *pgx.ConnConfig) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}},
		cfg.Fallbacks...)
}

// here reports whether a host is this machine: a socket of the file system, or loopback.
func here(host string) bool {
	return strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || loopback.Is(host)
}
