package failover

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
)

// newTestbedWithoutServerID makes a testbed whose roles may not read the server's system identifier and timeline, as
// with some managed servers.
func newTestbedWithoutServerID(t *testing.T, synchronous bool) *testbed {
	t.Helper()
	primary := pgtest.NewServer(t)
	db := primary.Database(t)
	for _, sql := range []string{
		`create role app login`, `grant create on schema public to app`,
		`revoke all on function pg_control_system() from public`,
		`revoke all on function pg_current_wal_lsn() from public`,
		`revoke all on function pg_walfile_name(pg_lsn) from public`,
	} {
		db.Exec(t, sql)
	}
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("app")
	conn, err := pgx.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), conn, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	owner, err := pgx.ConnectConfig(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = owner.Close(t.Context()) }()
	if _, err := owner.Exec(t.Context(), tables.SQLTables); err != nil {
		t.Fatal(err)
	}
	return newTestbedOn(t, synchronous, primary, db, u.String())
}

// TestSeveralHosts: the URL names primary and standby, with target_session_attrs=read-write. After a failover all
// processes find the new primary without a proxy.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, true)
	old, err := url.Parse(s.old.URL)
	if err != nil {
		t.Fatal(err)
	}
	next, err := url.Parse(s.standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	// The standby first, so that target_session_attrs matters.
	old.Host = next.Host + "," + old.Host
	old.RawQuery += "&target_session_attrs=read-write"
	both := old.String()
	p, r, w := s.producer("producer", both), s.relay("relay", both), s.worker("worker", both)
	pgtest.AwaitSQL(t, s.old, `select count(*) > 100 from history_effect`)
	s.primary.Kill()
	s.standby.Promote(t)
	s.awaitPayments(100)
	p.stopAndWait(t)
	s.awaitDrained()
	r.stopAndWait(t)
	w.stopAndWait(t)
	if v := s.verdict(nil); !v.OK() || v.Counts.Incarnations != 2 {
		t.Errorf("%d numberings: %s", v.Counts.Incarnations, v)
	}
}

// TestServerWithoutID: a server whose system identifier and timeline may not be read is identified by its start time. A
// crash, a failover and a restore each begin a new numbering. The first two lose and repeat nothing, the third loses
// the events that the backup lacks.
func TestServerWithoutID(t *testing.T) {
	t.Parallel()
	s := newTestbedWithoutServerID(t, true)
	if id := pgtest.One[string](t, s.old, `select timeline from outbox_meta`); !strings.HasPrefix(id, "started-") {
		t.Fatalf("the server's identity is %q, want its start time", id)
	}
	p, r, w := s.producer("producer", s.proxy.URL()), s.relay("relay", s.proxy.URL()), s.worker("worker", s.proxy.URL())
	pgtest.AwaitSQL(t, s.old, `select count(*) > 100 from history_effect`)
	s.primary.Kill()
	s.old.Pool.Reset() // its connections are dead
	s.primary.Start(t)
	pgtest.AwaitSQL(t, s.old, `select incarnation > 1 from outbox_meta`)
	s.awaitPayments(100)
	s.primary.Kill()
	s.promote()
	s.awaitPayments(100)
	p.stopAndWait(t)
	s.awaitDrained()
	if v := s.verdict(nil); !v.OK() || v.Counts.Incarnations != 3 {
		t.Errorf("crash and failover: %d numberings: %s", v.Counts.Incarnations, v)
	}
	// The backup is a standby that stops receiving.
	backup := s.standby.Standby(t, "backup")
	pgtest.AwaitSQL(t, s.db, `select count(*) = 1 from pg_stat_replication where replay_lsn >= pg_current_wal_lsn()`)
	restored := s.db.At(t, backup)
	restored.Exec(t, `alter system set primary_conninfo = ''`)
	restored.Exec(t, `select pg_reload_conf()`)
	pgtest.AwaitSQL(t, s.db, `select count(*) = 0 from pg_stat_replication`)
	p = s.producer("producer-2", s.proxy.URL())
	s.awaitPayments(100)
	p.stopAndWait(t)
	s.awaitDrained()
	s.standby.Kill()
	s.standby, s.db, s.source.DB = backup, restored, restored.Pool
	s.promote()
	p = s.producer("producer-3", s.proxy.URL())
	s.awaitPayments(100)
	p.stopAndWait(t)
	s.awaitDrained()
	r.stopAndWait(t)
	w.stopAndWait(t)
	const lost = "the backup lacks it"
	v := s.verdict(map[history.Name]string{
		history.OKAppendLost: lost, history.Phantom: lost, history.PhantomEffect: lost, history.DedupForgotten: lost,
	})
	t.Log(v)
	if !v.OK() || v.Counts.Incarnations != 4 || v.Count(history.OKAppendLost) == 0 {
		t.Errorf("restore: %d numberings, %d lost appends", v.Counts.Incarnations, v.Count(history.OKAppendLost))
	}
}
