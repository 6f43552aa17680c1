package doctor

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestFailoverSlot: what is missing for a standby to keep the slot of the WAL feed is said, on the primary and on the
// standby, and that nothing is.
func TestFailoverSlot(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two servers")
	}
	t.Parallel()
	const check = "failover slot"
	primary := pgtest.NewServer(t)
	db := primary.Database(t, migrations.Outbox)
	slot, err := operator.SetUpWAL(t.Context(), db.Pool, "")
	if err != nil {
		t.Fatal(err)
	}
	standby := primary.Standby(t, "standby")
	copied := db.At(t, standby)
	r, err := relay.New(db.Pool, nowhere{}, relay.Config{
		Feed: relay.FeedWAL, WALHeartbeat: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	pgtest.AwaitSQL(t, db, `select count(*) = 32 from outbox_streamed`)
	await := func(at *pgtest.DB, severity Severity, part string) {
		t.Helper()
		pgtest.Await(t, part, func() (bool, error) {
			got, text := worst(Examine(t.Context(), Subject{DB: at.Pool, Schema: at.Schema}), check)
			return got == severity && strings.Contains(text, part), nil
		})
	}
	if pgtest.One[int](t, db, `select current_setting('server_version_num')::int`) < kept {
		await(db, OK, "none before Postgres 17")
		await(copied, "", "")
		return
	}
	await(db, Warn, "1 standby without a slot")
	await(db, Warn, "no standby keeps logical slots")
	await(copied, Warn, "sync_replication_slots is off; hot_standby_feedback is off; primary_slot_name is empty; "+
		"primary_conninfo names no database")
	primary.KeepSlots(t, standby, "standby")
	standby.AwaitSynced(t, primary, slot)
	await(db, OK, "readers wait for standby")
	await(copied, OK, slot+" would go on")
	copied.Exec(t, `alter system set hot_standby_feedback = off`)
	copied.Exec(t, `select pg_reload_conf()`)
	await(db, Warn, "hot_standby_feedback is off behind standby")
	db.Exec(t, `alter system reset synchronized_standby_slots`)
	db.Exec(t, `select pg_reload_conf()`)
	await(db, Warn, "synchronized_standby_slots is empty")
	db.Exec(t, `alter system set synchronized_standby_slots = 'standby'`)
	db.Exec(t, `select pg_reload_conf()`)
	standby.StopFast()
	await(db, Fail, "waits for standby, which nobody reads")
}

// TestMissingSynchronousStandby: that a COMMIT waits for standbys that are not there is said, also to a role that sees
// no statistics of others.
func TestMissingSynchronousStandby(t *testing.T) {
	t.Parallel()
	db := pgtest.NewServer(t).Database(t, migrations.Outbox)
	cfg := db.Pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set role pg_read_all_data`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db.RequireStandby(t, pgtest.Nobody)
	expect(t, Examine(t.Context(), Subject{DB: pool, Schema: db.Schema}), "durability", Fail,
		"a COMMIT waits for 1 of the standbys nobody, and 0 of them are connected")
	for setting, want := range map[string]int64{
		"a, b": 1, "2 (a, b, c)": 2, "first 3 (a, b, c)": 3, " ANY 2(a, b)": 2, `"any 2 (a)"`: 1,
	} {
		db.Exec(t, `alter system set synchronous_standby_names = '`+setting+`'`)
		db.Exec(t, `select pg_reload_conf()`)
		pgtest.Await(t, setting, func() (bool, error) {
			s, err := readServer(t.Context(), pool)
			return s.SynchronousStandbys == setting && s.Wanted == want, err
		})
	}
}
