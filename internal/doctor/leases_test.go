package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// TestNoHeartbeat: a relay that runs and cannot write is told from one that does not run, with its role and what that
// lacks, by each role that looks.
func TestNoHeartbeat(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox)
	role := fmt.Sprintf("doctor_%d", time.Now().UnixNano())
	in := " in schema " + db.Schema + " to " + role
	for _, sql := range []string{
		"create role " + role + " login", "grant usage on schema " + db.Schema + " to " + role,
		"grant all on all tables" + in, "grant all on all sequences" + in, "grant execute on all functions" + in,
		`insert into outbox_event (topic, type) values ('t', 'T')`,
	} {
		db.Exec(t, sql)
	}
	address, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.User(role)
	pool, err := pgxpool.New(t.Context(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(pool, nowhere{}, relay.Config{Schema: db.Schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		pool.Close()
		for _, sql := range []string{"drop owned by " + role, "drop role " + role} {
			if _, err := db.Pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
				t.Error(err)
			}
		}
	})
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event)`)

	reads := db.Pool.Config()
	reads.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set role pg_read_all_data`) // which sees no statistics of others
		return err
	}
	reader, err := pgxpool.NewWithConfig(t.Context(), reads)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	want := func(pool *pgxpool.Pool, words, next, not string) {
		t.Helper()
		list := Examine(t.Context(), Subject{DB: pool, Schema: db.Schema, ReadsOnly: true})
		expect(t, list, "leases", Fail, words)
		for _, f := range list {
			if text := f.Next + f.Command; f.Check == "leases" && (!strings.Contains(text, next) ||
				not != "" && strings.Contains(text, not)) {
				t.Errorf("%+v, want %q", f, next)
			}
		}
	}
	db.Exec(t, `revoke insert, update, delete on relay_member from `+role)
	silence := func() {
		t.Helper()
		db.Exec(t, `update relay_member set seen = now() - interval '3 minutes', lease_until = now() - interval '165 s'`)
	}
	silence()
	for _, pool := range []*pgxpool.Pool{db.Pool, reader} {
		want(pool, "sessions as "+role+"), and cannot write their heartbeats: it lacks table relay_member: delete, "+
			"table relay_member: insert, table relay_member: update", "--roles --print", "relay run")
	}
	db.Exec(t, `revoke usage on schema `+db.Schema+` from public, `+role)
	want(db.Pool, "it lacks schema "+db.Schema+": usage", "--roles --print", "relay run")

	stop()
	<-done // it cannot give its lanes back
	pool.Close()
	db.Exec(t, `grant usage on schema `+db.Schema+` to public`)
	db.Exec(t, `grant all on relay_member to `+role)
	frozen, err := pgx.Connect(t.Context(), address.String()+"&application_name=effectonce%20relay%20keeper")
	if err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, db, `select count(*) = 1 from pg_stat_activity where usename = $1`, role)
	silence()
	want(db.Pool, "relays run (1 session as "+role+")", "/readyz", "relay run")
	_ = frozen.Close(t.Context())
	pgtest.AwaitSQL(t, db, `select not exists (select from pg_stat_activity where usename = $1)`, role)
	want(db.Pool, "0 relays, ", "If none runs, start one", "")
	db.Exec(t, `revoke all on pg_stat_activity from public`)
	own, err := pgxpool.New(t.Context(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	want(own, "whether relays have sessions is not known: permission denied", "If none runs, start one", "")
}
