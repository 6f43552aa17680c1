package migrations_test

import (
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// A pooler with ignore_startup_parameters drops the search_path without a word, and every table would land in public.
func TestPoolerThatDropsTheSearchPath(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	cfg := config(t, db.AdminURL)
	cfg.Host, cfg.Port = forgetful(t, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	cfg.Fallbacks = nil
	err := migrations.Up(t.Context(), cfg, migrations.Options{Schema: "app"})
	if err == nil || !strings.Contains(err.Error(), "connect to Postgres directly") {
		t.Errorf("got %v", err)
	}
	if got := relations(t, db, "public"); len(got) > 0 {
		t.Errorf("public has %q", got)
	}
	if schemas := lines(t, db, "select nspname::text from pg_namespace where nspname = 'app'"); len(schemas) > 0 {
		t.Error("the schema was made")
	}
}

// forgetful is a proxy for one connection at a time that passes on no search_path.
func forgetful(t *testing.T, server string) (string, uint16) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			forget(client, server)
		}
	}()
	addr := listener.Addr().(*net.TCPAddr)
	return addr.IP.String(), uint16(addr.Port)
}

func forget(client net.Conn, server string) {
	defer client.Close()
	first, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	delete(startup.Parameters, "search_path")
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()
	message, err := startup.Encode(nil)
	if err != nil {
		return
	}
	if _, err := upstream.Write(message); err != nil {
		return
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = io.Copy(client, upstream)
	}()
	_, _ = io.Copy(upstream, client)
	upstream.Close()
	<-answered
}
