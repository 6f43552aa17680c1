package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Standby starts a streaming standby of this server and waits until it answers. name is its application_name, for
// synchronous_standby_names. The end of the test removes it.
func (s *Server) Standby(t testing.TB, name string) *Server {
	t.Helper()
	standby, err := s.TryStandby(name)
	if err != nil {
		t.Fatalf("pgtest: standby: %v", err)
	}
	t.Cleanup(standby.Close)
	child.ShowLog(t, "the standby "+name, standby.log())
	return standby
}

// TryStandby is Standby with an error. The caller closes the standby.
func (s *Server) TryStandby(name string) (*Server, error) {
	dir, remove, err := s.temp("pg")
	if err != nil {
		return nil, err
	}
	standby := &Server{temp: s.temp, dir: dir, remove: remove, settings: s.settings}
	if err := s.baseBackup(dir, name); err != nil {
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

// baseBackup copies the running server to dir and configures the copy as a standby. Downloads from Maven do not have
// pg_basebackup.
func (s *Server) baseBackup(dir, name string) error {
	account, err := child.Unprivileged()
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
	if err := copyTree(filepath.Join(s.dir, "data"), data, account); err != nil {
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
		if err := account.Own(path); err != nil {
			return err
		}
	}
	// Remove the primary's slots and process id.
	slots, _ := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
	for _, path := range append(slots, filepath.Join(data, "postmaster.pid"), filepath.Join(data, "postmaster.opts")) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// RequireStandby makes the server's commits wait for the synchronous standby of a name, and returns once they do: it is
// the checkpointer that tells sessions to wait, some time after the reload. With Nobody they wait until the setting is
// reset.
func (db *DB) RequireStandby(t testing.TB, name string) {
	t.Helper()
	set := func(name string) {
		db.Exec(t, `alter system set synchronous_standby_names = '`+name+`'`)
		db.Exec(t, `select pg_reload_conf()`)
	}
	set(Nobody)
	probe := db.Connect(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := probe.Exec(ctx, `set synchronous_commit = on`)
		for err == nil && ctx.Err() == nil {
			_, err = probe.Exec(context.WithoutCancel(ctx), `select pg_logical_emit_message(true, 'pgtest', '')`)
		}
		ended <- err
	}()
	pid := probe.PgConn().PID()
	Await(t, "a COMMIT that waits for a standby", func() (waits bool, err error) {
		select {
		case err := <-ended:
			return false, err
		default:
		}
		err = db.Pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where pid = $1
			and wait_event = 'SyncRep')`, pid).Scan(&waits)
		return waits, err
	})
	stop()
	if name == Nobody {
		db.Exec(t, `select pg_terminate_backend($1, 60000)`, pid)
		<-ended
		return
	}
	set(name)
	if err := <-ended; err != nil {
		t.Fatalf("pgtest: a COMMIT that waited for %s: %v", name, err)
	}
}

// Nobody is the name of a standby that does not exist.
const Nobody = "nobody"

// RequireFailoverSlots skips the test unless the servers that NewServer starts have failover slots.
func RequireFailoverSlots(t testing.TB) {
	t.Helper()
	postgres, err := program("postgres")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(postgres, "--version").Output() // such as "postgres (PostgreSQL) 15.8 (Debian 15.8-0)"
	major := 0
	if err == nil {
		_, err = fmt.Sscanf(string(out), "postgres (PostgreSQL) %d", &major)
	}
	if err != nil {
		t.Fatalf("pgtest: the version of %s: %v", postgres, err)
	}
	if major < 17 {
		t.Skipf("Postgres %d has no failover slots: %s=18.6.0", major, EnvVersion)
	}
}

// KeepSlots makes the standby synchronise its primary's failover slots, and the primary send readers of these slots
// only WAL that the standby has. name is the name of the standby's slot. Postgres has them since version 17, see
// RequireFailoverSlots.
func (s *Server) KeepSlots(t testing.TB, standby *Server, name string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		t.Fatalf("pgtest: connect to the primary: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, `select pg_create_physical_replication_slot($1)`, name); err != nil {
		t.Fatalf("pgtest: the standby's slot: %v", err)
	}
	s.reload(t, `alter system set synchronized_standby_slots = '`+name+`'`)
	standby.reload(t, fmt.Sprintf(`alter system set primary_conninfo =
		'host=127.0.0.1 port=%d user=postgres dbname=postgres application_name=%s'`, s.port, name),
		`alter system set primary_slot_name = '`+name+`'`, `alter system set hot_standby_feedback = on`,
		`alter system set sync_replication_slots = on`)
}

// AwaitSynced waits until this standby has synchronised a slot of its primary.
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
		// A slot is synchronised once it has decoded a snapshot that the standby has. Servers log snapshots rarely.
		if _, err = conns[0].Exec(t.Context(), `select pg_log_standby_snapshot()`); err != nil {
			return false, err
		}
		err = conns[1].QueryRow(t.Context(), `select exists (select from pg_replication_slots
			where slot_name = $1 and synced and not temporary and invalidation_reason is null)`, slot).Scan(&ok)
		return ok, err
	})
}

// Promote makes the standby a primary on a new timeline.
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

// At returns this database on another server that has a copy of it, such as a standby.
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
