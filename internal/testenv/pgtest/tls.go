package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// UseTLS enables TLS for new connections, with a certificate and key in PEM. Plaintext still works, and open
// connections stay. Another call rotates the certificate.
func (s *Server) UseTLS(t testing.TB, cert, key []byte) {
	t.Helper()
	s.writeFile(t, "server.crt", cert)
	s.writeFile(t, "server.key", key)
	s.reload(t, `alter system set ssl_cert_file = '`+filepath.Join(s.dir, "server.crt")+`'`,
		`alter system set ssl_key_file = '`+filepath.Join(s.dir, "server.key")+`'`, `alter system set ssl = on`)
}

// UseHBA replaces pg_hba.conf with lines, after a line for the superuser of URL.
func (s *Server) UseHBA(t testing.TB, lines string) {
	t.Helper()
	s.writeFile(t, filepath.Join("data", "pg_hba.conf"), []byte("host all postgres 127.0.0.1/32 trust\n"+lines+"\n"))
	s.reload(t)
}

// writeFile writes a file that only the server's user can read, as Postgres requires for keys.
func (s *Server) writeFile(t testing.TB, name string, content []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	account, err := child.Unprivileged()
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err == nil {
		err = account.Own(path)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// reload runs statements and reloads the configuration, which takes effect on new connections a moment later.
func (s *Server) reload(t testing.TB, statements ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range append(statements, `select pg_reload_conf()`) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("pgtest: %s: %v", sql, err)
		}
	}
}
