package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Standby starts a streaming standby of this server, by pg_basebackup, under an application_name that
// synchronous_standby_names can say. It answers reads when Standby returns, and is removed at the end of the test.
func (s *Server) Standby(t testing.TB, name string) *Server {
	t.Helper()
	standby, err := s.TryStandby(name)
	if err != nil {
		t.Fatalf("pgtest: standby: %v", err)
	}
	t.Cleanup(standby.Close)
	return standby
}

// TryStandby is Standby for callers that go on when it fails. The caller closes what it returns.
func (s *Server) TryStandby(name string) (*Server, error) {
	dir, remove, err := child.TempDir("pg")
	if err != nil {
		return nil, err
	}
	standby := &Server{dir: dir, remove: remove, settings: s.settings}
	if err := s.backUp(dir, name); err != nil {
		remove()
		return nil, err
	}
	for range 5 { // as in startServer
		if standby.port, err = child.FreePort(); err != nil {
			break
		}
		if err = standby.start(); err == nil {
			return standby, nil
		}
	}
	standby.Close()
	return nil, err
}

// backUp copies the running server into dir, with what makes the copy follow it. Not with pg_basebackup, which servers
// from Maven do not bring.
func (s *Server) backUp(dir, name string) error {
	uid, gid, err := account()
	if err != nil {
		return err
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `select pg_backup_start('standby', true)`); err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	if err := copyTree(filepath.Join(s.dir, "data"), data, uid, gid); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, `select labelfile from pg_backup_stop(false)`).Scan(&label); err != nil {
		return err
	}
	settings, err := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	if err != nil {
		return err
	}
	settings = fmt.Appendf(settings, "primary_conninfo = 'host=127.0.0.1 port=%d user=postgres application_name=%s'\n",
		s.port, name)
	for file, content := range map[string]string{
		"backup_label": label, "standby.signal": "", "postgresql.auto.conf": string(settings),
	} {
		path := filepath.Join(data, file)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		if uid >= 0 {
			if err := os.Chown(path, uid, gid); err != nil {
				return err
			}
		}
	}
	// The copy has slots of its own, or none, and no process.
	slots, _ := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
	for _, path := range append(slots, filepath.Join(data, "postmaster.pid"), filepath.Join(data, "postmaster.opts")) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// KeepSlots has a standby of this name keep its primary's failover slots, which servers do from Postgres 17 on: with an
// older one it skips the test. The primary tells readers of such slots only what the standby has.
func (s *Server) KeepSlots(t testing.TB, standby *Server, name string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		t.Fatalf("pgtest: connect to the primary: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var version int
	if err := conn.QueryRow(ctx, `select current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatalf("pgtest: version: %v", err)
	}
	if version < 170000 {
		t.Skipf("Postgres %d has no failover slots: %s=18.6.0", version/10000, EnvVersion)
	}
	if _, err := conn.Exec(ctx, `select pg_create_physical_replication_slot($1)`, name); err != nil {
		t.Fatalf("pgtest: the standby's slot: %v", err)
	}
	s.reload(t, `alter system set synchronized_standby_slots = '`+name+`'`)
	standby.reload(t, fmt.Sprintf(`alter system set primary_conninfo =
		'host=127.0.0.1 port=%d user=postgres dbname=postgres application_name=%s'`, s.port, name),
		`alter system set primary_slot_name = '`+name+`'`, `alter system set hot_standby_feedback = on`,
		`alter system set sync_replication_slots = on`)
}

// AwaitSynced waits until this server, a standby, would go on with its primary's slot of that name after a promotion.
func (s *Server) AwaitSynced(t testing.TB, primary *Server, slot string) {
	t.Helper()
	var conns []*pgx.Conn
	for _, server := range []*Server{primary, s} {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatalf("pgtest: connect: %v", err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		conns = append(conns, conn)
	}
	Await(t, "a slot on the standby", func() (ok bool, err error) {
		// A slot can be kept once it has decoded a place that the standby has. Servers write such places rarely.
		if _, err = conns[0].Exec(t.Context(), `select pg_log_standby_snapshot()`); err != nil {
			return false, err
		}
		err = conns[1].QueryRow(t.Context(), `select exists (select from pg_replication_slots
			where slot_name = $1 and synced and not temporary and invalidation_reason is null)`, slot).Scan(&ok)
		return ok, err
	})
}

// Promote ends the standby's following: it is a primary on a timeline of its own when Promote returns.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatalf("pgtest: connect to the standby: %v", err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var promoted bool
	if err := conn.QueryRow(t.Context(), `select pg_promote(true)`).Scan(&promoted); err != nil || !promoted {
		t.Fatalf("pgtest: promote: %v (%v)", promoted, err)
	}
}

// At is this database on another server that has a copy of it, such as a standby.
func (db *DB) At(t testing.TB, s *Server) *DB {
	t.Helper()
	move := func(rawURL string) string {
		u, err := url.Parse(rawURL)
		if err != nil {
			t.Fatalf("pgtest: parse %s: %v", rawURL, err)
		}
		u.Host = fmt.Sprintf("127.0.0.1:%d", s.port)
		return u.String()
	}
	return open(t, move(db.AdminURL), db.Schema)
}
