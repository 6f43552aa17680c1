package browser

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// failuresOfPostgres are those of the database and its settings.
var failuresOfPostgres = []failure{
	{
		name: "the database does not answer", check: thisDatabase, says: "It does not answer in time.",
		stage: func(n *night) {
			proxy := pgtest.NewProxy(n.t, n.db.URL)
			n.pool = n.through(proxy.URL())
			proxy.Refuse(true)
			n.outside = func() { proxy.Refuse(false) }
		},
		mend: elsewhere, do: "the network was mended",
	},
	{
		name: "no connection is left for the role", check: thisDatabase, says: "has no connection left",
		stage: func(n *night) {
			n.pool = n.through(n.role("connection limit 3"))
			for range 3 {
				conn, err := n.pool.Acquire(n.t.Context())
				if err != nil {
					n.t.Fatal(err)
				}
				hijacked := conn.Hijack()
				n.t.Cleanup(func() { _ = hijacked.Close(context.Background()) })
			}
			n.outside = func() {
				n.db.Exec(n.t, `select pg_terminate_backend(pid) from pg_stat_activity where usename = $1`,
					n.pool.Config().ConnConfig.User)
			}
		},
		mend: elsewhere, do: "the sessions were ended",
	},
	{
		name: "the relay's role lacks a grant", check: "grants", says: "the role lacks",
		stage: func(n *night) {
			n.pool = n.through(n.role(""))
			user := pgx.Identifier{n.pool.Config().ConnConfig.User}.Sanitize()
			n.db.Exec(n.t, "revoke update on outbox_lane from "+user)
			n.outside = func() { n.db.Exec(n.t, "grant update on outbox_lane to "+user) }
		},
		mend: elsewhere, do: "it was granted",
	},
	{
		name: "a release was deployed, and its migration was not", check: "schema outbox", says: "10017",
		stage: func(n *night) {
			n.db.Exec(n.t, "drop index outbox_archive_message")
			n.db.Exec(n.t, "delete from effectonce_migration where version_id = 10017")
			n.outside = func() {
				to := n.db.Pool.Config().ConnConfig
				if err := migrations.Up(n.t.Context(), to, migrations.Options{}); err != nil {
					n.t.Fatal(err)
				}
			}
		},
		mend: elsewhere, do: "so it was",
	},
	{
		name: "the URL leads to a standby", check: thisDatabase, says: "This server is a standby",
		stage: func(n *night) {
			n.own()
			standby := n.server.Standby(n.t, "s1")
			at := n.db.At(n.t, standby)
			n.pool = at.Pool
			n.outside = func() { standby.Promote(n.t) }
		},
		mend: elsewhere, do: "the standby was promoted",
	},
	{
		name: "the database was restored from a backup", check: "restored",
		says: "the outbox is older than what it has published",
		stage: func(n *night) {
			stop := n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			stop()
			old := n.db.Copy(n.t)
			stop = n.relay(n.db.Pool, relay.Config{})
			for range 20 {
				n.append(n.topic, "k", "{}", "{}", "{}")
			}
			n.until(isPublished)
			stop()
			n.db, n.pool = old, old.Pool
			n.outside = func() {
				o, err := operator.New(n.db.Pool, n.db.Schema, "ann")
				if err == nil {
					_, err = o.Fence(n.t.Context(), "restored")
				}
				if err != nil {
					n.t.Fatal(err)
				}
			}
		},
		mend: func(n *night) {
			n.outside()
			n.goes("Doctor", "")
			n.goes("Look again now", "")
		},
		do: "so it was",
	},
	{
		name: "nobody reads the replication slot", check: "slot", says: "Nobody reads it",
		stage: func(n *night) {
			n.setUpWAL()
			stop := n.relay(n.db.Pool, relay.Config{Feed: relay.FeedWAL})
			n.append(n.topic, "k", "{}")
			n.until("select exists (select from pg_replication_slots where active and database = current_database())")
			n.until(isPublished)
			stop()
			n.outside = func() { n.relay(n.db.Pool, relay.Config{Feed: relay.FeedWAL}) }
		},
		mend: elsewhere, do: "a relay was started so",
	},
	{
		name: "the replication slot is lost to max_slot_wal_keep_size", check: "slot", says: "fell behind",
		stage: func(n *night) {
			n.own("max_slot_wal_keep_size=16MB", "max_wal_size=64MB", "min_wal_size=32MB")
			n.setUpWAL()
			stop := n.relay(n.db.Pool, relay.Config{Feed: relay.FeedWAL})
			n.append(n.topic, "k", "{}")
			n.until("select exists (select from pg_replication_slots where active and database = current_database())")
			n.until(isPublished)
			stop()
			n.db.Exec(n.t, "create table bulk as select repeat(md5(g::text), 30) from generate_series(1, 150000) g")
			pgtest.Await(n.t, "a lost slot", func() (bool, error) {
				n.db.Exec(n.t, "select pg_switch_wal()")
				n.db.Exec(n.t, "checkpoint")
				return pgtest.One[bool](n.t, n.db, `select bool_or(wal_status = 'lost') from pg_replication_slots`), nil
			})
			n.outside = func() { n.relay(n.db.Pool, relay.Config{Feed: relay.FeedWAL}) }
		},
		mend: elsewhere, do: "a relay was started, which made another slot",
	},
	{
		name: "a transaction was forgotten", check: "idle in transaction", says: "session, the first is",
		stage: func(n *night) {
			conn := n.db.Connect(n.t)
			if _, err := conn.Exec(n.t.Context(), "begin; lock table outbox_event in row share mode"); err != nil {
				n.t.Fatal(err)
			}
			n.outside = func() {
				n.db.Exec(n.t, "select pg_terminate_backend($1)", int32(conn.PgConn().PID()))
			}
		},
		mend: elsewhere, do: "so it was",
	},
	{
		name: "autovacuum was switched off for the outbox", check: "vacuum", says: "autovacuum is off for it",
		stage: func(n *night) {
			n.db.Exec(n.t, "alter table outbox_event set (autovacuum_enabled = off)")
			n.outside = func() { n.db.Exec(n.t, "alter table outbox_event reset (autovacuum_enabled)") }
		},
		mend: elsewhere, do: "so it was",
	},
	{
		name: "somebody gave the sequence of ids a cache", check: "sequence", says: "cache 100",
		stage: func(n *night) {
			n.db.Exec(n.t, "alter sequence outbox_event_id_seq cache 100")
			n.outside = func() {
				n.db.Exec(n.t, "alter sequence outbox_event_id_seq cache 1 increment 1 no cycle")
			}
		},
		mend: elsewhere, do: "so it was",
	},
}

const thisDatabase = "This database cannot be looked at"

// through is a pool of another way to the database.
func (n *night) through(url string) *pgxpool.Pool {
	n.t.Helper()
	pool, err := pgxpool.New(n.t.Context(), url)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(pool.Close)
	return pool
}

// role makes one that may do all that a relay does, and returns its URL.
func (n *night) role(options string) string {
	n.t.Helper()
	name := fmt.Sprintf("shift_%d", time.Now().UnixNano())
	for _, sql := range []string{
		"create role " + name + " login " + options,
		"grant select, insert, update, delete on all tables in schema public to " + name,
		"grant select, update, usage on all sequences in schema public to " + name,
	} {
		n.db.Exec(n.t, sql)
	}
	n.t.Cleanup(func() {
		ctx := context.Background()
		_, _ = n.db.Pool.Exec(ctx, "drop owned by "+name)
		_, _ = n.db.Pool.Exec(ctx, "drop role "+name)
	})
	u, err := url.Parse(n.db.URL)
	if err != nil {
		n.t.Fatal(err)
	}
	u.User = url.User(name)
	return u.String()
}

// own gives the night a server of its own.
func (n *night) own(settings ...string) {
	n.t.Helper()
	server, err := pgtest.Standalone(settings...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(server.Close)
	n.server, n.db = server, server.Database(n.t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	n.pool = n.db.Pool
}

func (n *night) setUpWAL() {
	n.t.Helper()
	if _, err := operator.SetUpWAL(n.t.Context(), n.db.Pool, n.db.Schema); err != nil {
		n.t.Fatal(err)
	}
	slot := func() {
		_, _ = n.db.Pool.Exec(context.Background(), `select pg_drop_replication_slot(slot_name)
			from pg_replication_slots where database = current_database() and not active`)
	}
	n.t.Cleanup(slot)
}
