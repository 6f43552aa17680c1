package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the test of AppendSQL

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
)

// hardenedDB is a database without the rights of PUBLIC, with the roles in it.
type hardenedDB struct {
	*pgtest.DB
	prefix string
}

// openHardened gives each test its own roles: roles belong to the server.
func openHardened(t *testing.T) *hardenedDB {
	t.Helper()
	db := pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	h := &hardenedDB{db, fmt.Sprintf("r%d", time.Now().UnixNano())}
	for _, sql := range []string{
		"do $$ begin execute format('revoke all on database %I from public', current_database()); end $$",
		"revoke all on schema public from public", "revoke all on all tables in schema public from public",
		"revoke all on all sequences in schema public from public", "revoke all on all functions in schema public " +
			"from public",
		"revoke all on function pg_control_system() from public", "revoke all on function pg_current_wal_lsn() " +
			"from public",
		"revoke all on function pg_walfile_name(pg_lsn) from public", "revoke all on pg_locks from public",
	} {
		h.Exec(t, sql)
	}
	names := []string{"operator", "append", "relay", "inbox", "inbox_maintainer", "idempotency"}
	h.dropAtEnd(t, names...)
	for range 2 { // a second run changes nothing
		h.grant(t)
	}
	for _, name := range names {
		for _, user := range []string{h.user(name), h.user(name) + "2"} {
			h.Exec(t, fmt.Sprintf("create role %s login in role %s_%s", user, h.prefix, name))
		}
	}
	return h
}

// dropAtEnd drops roles and their users at the end of the test.
func (h *hardenedDB) dropAtEnd(t *testing.T, names ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, h.AdminURL)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		for _, name := range names {
			for _, role := range []string{h.user(name), h.user(name) + "2", h.prefix + "_" + name} {
				if _, err := conn.Exec(ctx, fmt.Sprintf(
					`do $$ begin if exists (select from pg_roles where rolname = '%[1]s') then
					reassign owned by %[1]s to current_user; drop owned by %[1]s cascade; drop role %[1]s; end if; end $$`, role)); err != nil {
					t.Errorf("drop role %s: %v", role, err)
				}
			}
		}
	})
}

func (h *hardenedDB) grant(t *testing.T) {
	t.Helper()
	code, sql, stderr := command(t, environment{}, "migrate", "--roles", "--print", "--schema", h.Schema,
		"--role-prefix", h.prefix)
	if code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	h.Exec(t, sql)
}

// user is the name of a login with one of the roles.
func (h *hardenedDB) user(name string) string { return h.prefix + "_" + name + "_user" }

func (h *hardenedDB) url(t *testing.T, user string) string {
	t.Helper()
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(user)
	return u.String()
}

// pool connects as a user with the role.
func (h *hardenedDB) pool(t *testing.T, name string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), h.url(t, h.user(name)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// refused checks that each of the statements is denied.
func refused(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := pool.Exec(t.Context(), sql); !pgerr.Is(err, pgerr.InsufficientPrivilege) {
			t.Errorf("%s: %v, want it refused", sql, err)
		}
	}
}

// TestRolesByOwner: the owner of the tables can run the SQL without being a superuser, and can still migrate
// afterwards.
func TestRolesByOwner(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	h := &hardenedDB{db, fmt.Sprintf("o%d", time.Now().UnixNano())}
	h.dropAtEnd(t, "operator", "append", "relay", "inbox", "inbox_maintainer", "idempotency", "owner")
	owner := h.user("owner")
	h.Exec(t, "create role "+owner+" login createrole")
	h.Exec(t, "do $$ begin execute format('grant create on database %I to "+owner+"', current_database()); end $$")
	env := environment{"RELAY_DATABASE_URL": h.url(t, owner), "RELAY_SCHEMA": "app", "RELAY_ROLE_PREFIX": h.prefix}
	if code, _, stderr := command(t, env, "migrate"); code != codeOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	_, roles, _ := command(t, env, "migrate", "--roles", "--print")
	pool, err := pgxpool.New(t.Context(), h.url(t, owner))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range 2 {
		if _, err := pool.Exec(t.Context(), roles); err != nil {
			t.Fatal(err)
		}
	}
	h.Exec(t, fmt.Sprintf("create role %s login in role %s_inbox_maintainer", h.user("inbox_maintainer"), h.prefix))
	if code, _, stderr := command(t, env.with("RELAY_DATABASE_URL", h.url(t, h.user("inbox_maintainer"))), "inbox",
		"maintain"); code != codeOK {
		t.Errorf("maintain: exit code %d: %s", code, stderr)
	}
	if n := pgtest.One[int](t, db,
		`select count(distinct relowner) from pg_class where relname like 'inbox\_message%' and relname not like '%any%'
			and relkind in ('r', 'p')`); n != 1 {
		t.Errorf("%d owners", n)
	}
	if _, err := pool.Exec(t.Context(), "alter table app.inbox_message add column later int"); err != nil {
		t.Errorf("the next migration: %v", err)
	}
	if code, _, stderr := command(t, env, "inbox", "maintain"); code != codeOK {
		t.Errorf("maintain by the owner: exit code %d: %s", code, stderr)
	}
}

// TestRoleOperator: the prescribed role for the pages reads all of them, sees other roles' sessions, and may change.
func TestRoleOperator(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	env := settings(h.DB).with("RELAY_DATABASE_URL", h.url(t, h.user("operator")), "USER", "ann")
	delete(env, "RELAY_KAFKA_BROKERS")
	i := serveUI(t, env)
	as := func(*http.Request) {}
	page := i.awaitShown("/doctor", "inbox grants", as)
	for _, no := range []string{"Not looked at: ", "may not be read", "of other roles in this database are hidden"} {
		if strings.Contains(page, no) {
			t.Errorf("the page says %q:\n%s", no, page)
		}
	}
	form := url.Values{"topic": {"orders"}, "reason": {"late"}}
	db := strings.TrimPrefix(must(url.Parse(h.URL)).Path, "/")
	if status, page := i.request(http.MethodPost, "/db/"+db+"/topics/pause", form, as); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	for _, path := range []string{
		"/", "/keys", "/failures", "/consumers", "/relays", "/audit", "/idempotency",
		"/search?text=pay-1", "/scheduled", "/archive", "/topics",
	} {
		if status, page := i.request(http.MethodGet, path, nil, as); status != http.StatusOK ||
			strings.Contains(page, "Not looked at: ") || strings.Contains(page, "lets this page only read") {
			t.Errorf("%s: %d %s", path, status, page)
		}
	}
}

// TestRolesCoverAllTables: the roles' rights on a new table must be decided.
func TestRolesCoverAllTables(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	rows, err := h.Pool.Query(t.Context(), `select c.relname::text from pg_class c
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
			and not exists (select from pg_roles r, pg_attribute a where r.rolname like $1 || '\_%'
				and not r.rolcanlogin
				and a.attrelid = c.oid and a.attnum > 0
				and has_column_privilege(r.oid, c.oid, a.attnum, 'select, insert, update'))`, h.prefix)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		t.Errorf("no role may use %s: add its grants to migrations/roles_*.sql", table)
	}
}

func TestRoleAppend(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	pool := h.pool(t, "append")
	many := make([]event.Event, 3000) // enough for COPY
	for i := range many {
		many[i] = event.Event{
			Topic: "payments", Key: fmt.Sprint(i), Type: "T", Payload: []byte("{}"),
			Headers: map[string]string{"a": "b"},
		}
	}
	later := slices.Clone(many[:300])
	for i := range later {
		later[i].NotBefore = time.Now().Add(time.Hour)
	}
	for _, events := range [][]event.Event{many[:1], many[:20], many, later[:1], later[:20], later} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if err := outbox.LockKeys(t.Context(), tx, "a", "b"); err != nil {
				return err
			}
			return outbox.Append(t.Context(), tx, events...)
		})
		if err != nil {
			t.Errorf("%d events: %v", len(events), err)
		}
	}
	db, err := sql.Open("pgx", h.url(t, h.user("append")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := (outbox.Appender{}).AppendSQL(t.Context(), tx, many[:20]...); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if _,
		err := pool.Exec(t.Context(),
		`insert into outbox_event (topic, key, type, payload) values ('t', 'k', 'T', 'x')`); err != nil {
		t.Errorf("plain SQL: %v", err)
	}
	if n := pgtest.One[int](t, h.DB, `select count(*) from outbox_event`); n != 3042 {
		t.Errorf("%d events", n)
	}
	refused(
		t, pool, `select from outbox_event`, `delete from outbox_event`, `update outbox_event set topic = ''`,
		`truncate outbox_event`,
		`insert into outbox_event (id, topic, type) overriding system value values (1, 't', 'T')`,
		`insert into outbox_event (topic, type, created_at) values ('t', 'T', now())`,
		`select nextval('outbox_event_id_seq')`, `select setval('outbox_event_id_seq', 1)`,
		`alter table outbox_event alter id restart`, `select from outbox_lane`, `select from outbox_parked`,
		`select from outbox_scheduled`, `select from inbox_message`, `create table x ()`,
	)
}

func TestRoleRelay(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	topic := kafkatest.Topic(t, 3)
	fill(t, h.DB, topic, 500)
	// The user changes while the relay runs, as in a rotation that creates a second user first.
	secret := filepath.Join(t.TempDir(), "url")
	write := func(user string) {
		if err := os.WriteFile(secret, []byte(h.url(t, user)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(h.user("relay"))
	env := settings(h.DB, kafkatest.Brokers(t)...).with("RELAY_DATABASE_URL", "", "RELAY_DATABASE_URL_FILE", secret,
		"RELAY_LEASE", "5s")
	running := inProcess(t, env)
	awaitDrained(t, h.DB)
	running.awaitPage("/readyz", 200)
	if code, _, stderr := command(t, env, "status"); code != codeOK {
		t.Errorf("status: exit code %d: %s", code, stderr)
	}
	for _, args := range []string{"lanes", "parked list", "parked keys", "topics list", "scheduled list", "audit"} {
		if code, _, stderr := command(t, env, strings.Fields(args)...); code != codeOK {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	h.Exec(t,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic, key,
				type, content_type, created_at)
		values (1, 1, true, false, 1, gen_random_uuid(), '', '', 't', 'k', 'T', '', now())`)
	for _, args := range []string{
		"parked edit --id 1 --content-type text/plain", "parked discard --id 1",
		"topics pause --topic no", "topics resume --topic no",
	} {
		if code, _, stderr := command(t, env,
			append(strings.Fields(args), "--reason=as the test wants it")...); code != codeOK {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	// A supervisor of many outboxes uses the role, too. Right after a publication it may or may not find work.
	asking := opened(t, h.pool(t, "relay"), h.Schema)
	if _, err := asking.Waits(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := asking.LastID(t.Context()); err != nil {
		t.Error(err)
	}
	// doctor checks for the rights that the role has.
	if _, text, _ := command(t, env, "doctor"); !strings.Contains(text, "all that a relay needs") ||
		strings.Contains(text, "could not look") {
		t.Error(text)
	}
	if _, text, _ := command(t, env.with("RELAY_DATABASE_URL", h.url(t, h.user("append"))),
		"doctor"); !strings.Contains(text, "the role lacks function outbox_server(): execute") {
		t.Error(text)
	}
	refused(
		t, h.pool(t, "relay"), `insert into outbox_event (created_at, topic, type) values (now(), 't', 'T')`,
		`insert into outbox_scheduled (due, topic, type) values (now(), 't', 'T')`,
		`update outbox_event set topic = 't'`, `truncate outbox_event`, `drop table outbox_event`,
		`insert into outbox_lane (lane) values (31)`, `delete from outbox_lane`, `delete from outbox_meta`,
		`delete from outbox_audit`, `update outbox_audit set operator = 'x'`, `select nextval('outbox_event_id_seq')`,
		`select from inbox_message`, `create table x ()`,
	)
	write(h.user("relay") + "2")
	h.Exec(t, "alter role "+h.user("relay")+" nologin")
	h.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", h.user("relay"))
	fill(t, h.DB, topic, 500, 500)
	h.Exec(t, `insert into outbox_scheduled (due, topic, type) values (now(), $1, 'T')`, topic)
	pgtest.AwaitSQL(t, h.DB, `select not exists (select from outbox_scheduled)`)
	awaitDrained(t, h.DB)
	if n := pgtest.One[int](t, h.DB, "select count(*) from pg_stat_activity where usename = $1", h.user("relay")+
		"2"); n == 0 {
		t.Error("the relay is not connected as its second user")
	}
	running.signal()
	if code := running.end(); code != codeOK {
		t.Errorf("exit code %d: %s", code, running.output())
	}
	if strings.Contains(running.output(), "permission denied") {
		t.Errorf("a grant is missing: %s", running.output())
	}
}

// TestRoleRelayOperates: operators' commands need no more rights than relays, and neither does archiving.
func TestRoleRelayOperates(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	topic := kafkatest.Topic(t, 3)
	env := settings(h.DB, kafkatest.Brokers(t)...).with("RELAY_DATABASE_URL", h.url(t, h.user("relay")),
		"RELAY_ARCHIVE_DAYS", "30", "USER", "kim")
	fill(t, h.DB, topic, 50)
	running := inProcess(t, env)
	pgtest.AwaitSQL(t, h.DB, `select count(*) = 50 from outbox_archive`)
	h.Exec(t, `insert into outbox_scheduled (due, topic, type) values ('2126-01-02 00:00Z', $1, 'T'),
		('2126-01-03 00:00Z', $1, 'T')`, topic)
	for _, args := range [][]string{
		{"topics", "pause", "--topic", topic, "--reason=r"},
		{"topics", "resume", "--topic", topic, "--reason=r"},
		{"topics", "list"},
		{"topics", "show", "--topic", topic},
		{"topics", "accept", "--topic", topic, "--partitions=3", "--reason=r"},
		{"scheduled", "list"},
		{"scheduled", "cancel", "--seq=1", "--due=2126-01-02T00:00:00Z", "--reason=r"},
		{"scheduled", "cancel-all", "--topic", topic, "--reason=r"},
		{"replay", "--from=2026-01-01T00:00:00Z", "--topic", topic, "--dry-run"},
		{"replay", "--from=2026-01-01T00:00:00Z", "--topic", topic, "--reason=r"},
		{"replay", "--query", "select * from outbox_archive order by pos", "--dry-run"},
		{"replay", "--query", "select * from outbox_archive where pos = 1", "--reason=r"},
		{"fence", "--reason=r"},
	} {
		if code, _, stderr := command(t, env, args...); code != codeOK {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	pgtest.AwaitSQL(t, h.DB, `select count(*) = 101 from outbox_archive`)
	if code, _, stderr := command(t, env, "archive", "maintain"); code != codeUsage ||
		!strings.Contains(stderr, "as the owner of the tables") {
		t.Errorf("archive maintain: exit code %d: %s", code, stderr)
	}
	running.signal()
	if code := running.end(); code != codeOK || !strings.Contains(running.output(), "relay archive maintain") {
		t.Errorf("exit code %d: %s", code, running.output())
	}
}

// releaseOfAnotherDay releases an event whose id is too far in the future to have a partition. A worker without the
// right to create the day waits for the maintainer.
func (h *hardenedDB) releaseOfAnotherDay(t *testing.T, do inbox.Handler, person, maintain environment) {
	t.Helper()
	ahead := event.Event{
		ID: event.IDAt(time.Now().AddDate(0, 0, 20)), Topic: "payments", Type: "T",
		Position: event.Position{Offset: 3},
	}
	out, err := do.Handle(t.Context(), []event.Event{ahead})
	if err != nil || out[0] != inbox.Quarantined {
		t.Fatalf("%v, %v", out, err)
	}
	id := pgtest.One[int64](t, h.DB, `select id from inbox_parked where message_id = $1`, ahead.ID)
	if code, _, stderr := command(t, person, "inbox", "parked", "release", "--id",
		strconv.FormatInt(id, 10), "--reason", "test"); code != codeOK {
		t.Fatal(stderr)
	}
	if code, _, stderr := command(t, maintain, "inbox", "maintain"); code != codeOK {
		t.Fatal(stderr)
	}
	pgtest.AwaitSQL(t, h.DB, `select exists (select from effect where id = $1)`, ahead.ID)
}

func TestRoleInbox(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	pgtest.AwaitDay(t, h.DB)
	maintain := environment{"RELAY_DATABASE_URL": h.url(t, h.user("inbox_maintainer"))}
	pool := h.pool(t, "inbox")
	h.Exec(t, "create table effect (id uuid)")
	h.Exec(t, fmt.Sprintf("grant insert on effect to %s_inbox", h.prefix))
	var said output
	in, err := inbox.New(pool, "worker", inbox.Config{
		MaintainEvery: -1, ReleaseEvery: 10 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	do := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.Type == "poison" {
			return outcome.Terminal("poison", errors.New("as the test wants it"))
		}
		_, err := tx.Exec(ctx, `insert into effect values ($1)`, e.ID)
		return err
	})
	e := event.Event{ID: event.NewID(), Topic: "payments", Key: "k", Type: "T"}
	// At its first start a worker records its window; then maintenance can create its days.
	if _, err := do.Handle(t.Context(), []event.Event{e}); err == nil ||
		!strings.Contains(err.Error(), "relay inbox maintain") {
		t.Errorf("without days: %v", err)
	}
	for range 2 {
		if code, _, stderr := command(t, maintain, "inbox", "maintain"); code != codeOK {
			t.Fatalf("maintain: exit code %d: %s", code, stderr)
		}
	}
	foreign := e
	foreign.ID[6] = 0x40 | foreign.ID[6]&0x0f // a v4 goes to the other table
	for i, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate} {
		out, err := do.Handle(t.Context(), []event.Event{e, foreign})
		if err != nil || out[0] != want || out[1] != want {
			t.Errorf("round %d: %v, %v", i, out, err)
		}
	}
	poison := event.Event{
		ID: event.NewID(), Topic: "payments", Key: "p", Type: "poison",
		Position: event.Position{Offset: 1},
	}
	behind := event.Event{
		ID: event.NewID(), Topic: "payments", Key: "p", Type: "T",
		Position: event.Position{Offset: 2},
	}
	out, err := do.Handle(t.Context(), []event.Event{poison, behind})
	if err != nil || out[0] != inbox.Parked || out[1] != inbox.Parked {
		t.Errorf("parked: %v, %v", out, err)
	}
	// Its operator has the same role.
	person := maintain.with("RELAY_DATABASE_URL", h.url(t, h.user("inbox")), "RELAY_CONSUMER", "worker")
	for _, args := range []string{
		"parked list", "parked keys", "consumers", "parked edit --id 1 --content-type text/plain --reason test",
		"parked skip-head --topic payments --key p --keep --reason test",
		"parked release --topic payments --key p --reason test",
		"parked discard --topic payments --key p --reason test", "audit",
	} {
		if code, _, stderr := command(t, person,
			append([]string{"inbox"}, strings.Fields(args)...)...); code != codeOK {
			t.Errorf("inbox %s: exit code %d: %s", args, code, stderr)
		}
	}
	// All of Run: released events are applied, and no statement needs a right that the role lacks.
	behind.ID, poison.ID = event.NewID(), event.NewID()
	behind.Key, poison.Key = "q", "q"
	if _, err := do.Handle(t.Context(), []event.Event{poison, behind}); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran, before := make(chan error, 1), len(said.String())
	go func() { ran <- in.Run(ctx) }()
	if code, _, stderr := command(t, person, "inbox", "parked", "skip-head", "--topic", "payments", "--key", "q",
		"--reason", "test"); code != codeOK {
		t.Error(stderr)
	}
	pgtest.AwaitSQL(t, h.DB, `select exists (select from effect where id = $1)`, behind.ID)
	cancel()
	if err := <-ran; err != nil || strings.Contains(said.String()[before:], "permission denied") {
		t.Errorf("%v: %s", err, said.String()[before:])
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() { ran <- in.Run(ctx) }()
	h.releaseOfAnotherDay(t, do, person, maintain)
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	// An expired day of another owner is dropped, and the next migration still works.
	h.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('old', '2020-01-01', 1) on "+
		"conflict do nothing")
	h.Exec(t, "update inbox_consumer set window_days = 1")
	h.grant(t)
	if code, _, stderr := command(t, maintain, "inbox", "maintain"); code != codeOK {
		t.Errorf("maintain: exit code %d: %s", code, stderr)
	}
	if n := pgtest.One[int](t, h.DB,
		`select count(*) from pg_inherits where inhparent = 'inbox_message'::regclass`); n != 10 {
		t.Errorf("%d days, want yesterday, today, seven ahead and the released one", n)
	}
	env := maintain.with("RELAY_DATABASE_URL", h.url(t, h.user("inbox")))
	if _, text, _ := command(t, env, "doctor"); !strings.Contains(text, "a worker's user needs none") ||
		!strings.Contains(text, "all that a worker needs") || strings.Contains(text, "could not look") {
		t.Error(text)
	}
	today := "inbox_message_" + pgtest.One[string](t, h.DB,
		`select to_char(clock_timestamp() at time zone 'utc', 'YYYYMMDD')`)
	refused(
		t, pool, `create table inbox_message_20200101 ()`, `drop table inbox_message`,
		`update inbox_days set dropped_before = '2100-01-01'`, `update inbox_message set status = 'done'`,
		`delete from inbox_audit`, `select from outbox_event`, `select from outbox_parked`,
	)
	refused(
		t, h.pool(t, "inbox_maintainer"), `select record_value, reason from inbox_parked`,
		`insert into inbox_message_any (consumer_name, message_id) values ('', gen_random_uuid())`,
		`drop table inbox_parked`, `drop table inbox_message_any`, `select from outbox_event`,
		`drop table outbox_event`, `update inbox_consumer set window_days = 1`,
		`create function own() returns trigger language plpgsql as 'begin return new; end'`, `drop table inbox_message`,
		`drop table `+today, `truncate `+today,
		`create trigger own after insert on inbox_message execute function suppress_redundant_updates_trigger()`,
		`create trigger own after insert on `+today+` execute function suppress_redundant_updates_trigger()`,
	)
	for sql, want := range map[string]string{
		`select inbox_drop_day((clock_timestamp() at time zone 'utc')::date)`: "is remembered",
		`select inbox_make_day('1969-12-31')`:                                 "is never made again",
	} {
		if _, err := h.pool(t, "inbox_maintainer").Exec(t.Context(), sql); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", sql, err)
		}
	}
	refused(t, pool, `select inbox_make_day(current_date + 100)`, `select inbox_drop_day('2020-01-01')`)
	// Of what they may delete, only in the way of the inbox.
	h.Exec(t, `insert into inbox_message_any (consumer_name, message_id) values ('', gen_random_uuid())`)
	for _, role := range []string{"inbox", "inbox_maintainer"} {
		_, err := h.pool(t, role).Exec(t.Context(), "delete from inbox_message_any")
		if !pgerr.Is(err, "23001") {
			t.Errorf("%s: %v, want it refused", role, err)
		}
	}
}

// TestP9_7_DroppingForTheOwner: a role that does not own the days drops one when no transaction is open, empties it
// before, and blocks nobody meanwhile.
func TestP9_7_DroppingForTheOwner(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	pgtest.AwaitDay(t, h.DB)
	pool := h.pool(t, "inbox_maintainer")
	h.Exec(t, "insert into inbox_consumer (consumer_name, floor, window_days) values ('worker', '2020-01-01', 10)")
	if _, err := inbox.MaintainAll(t.Context(), pool, inbox.MaintainConfig{DaysAhead: 1}); err != nil {
		t.Fatal(err)
	}
	old := pgtest.One[string](t, h.DB,
		`select min(inhrelid::regclass::text) from pg_inherits where inhparent = 'inbox_message'::regclass`)
	h.Exec(t, `insert into inbox_message (consumer_name, message_id)
		select 'worker', (lpad(to_hex(extract(epoch from to_date(right($1, 8), 'YYYYMMDD'))::bigint * 1000), 12,
			'0') || '70008000000000000000')::uuid`, old)
	tx, err := h.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `insert into inbox_message (consumer_name, message_id) values ('worker', $1)`,
		event.NewID()); err != nil {
		t.Fatal(err)
	}
	h.Exec(t, "update inbox_consumer set window_days = 9")
	dropped := make(chan error, 1)
	go func() {
		_, err := inbox.MaintainAll(t.Context(), pool, inbox.MaintainConfig{DaysAhead: 1})
		dropped <- err
	}()
	pgtest.AwaitSQL(t, h.DB, `select (select dropped_before from inbox_days) > to_date(right($1, 8), 'YYYYMMDD')`, old)
	pgtest.Await(t, "the day is empty", func() (bool, error) {
		var n int
		err := h.Pool.QueryRow(t.Context(), `select count(*) from `+old).Scan(&n)
		return n == 0, err
	})
	// The open transaction blocks the drop, and a second worker's transaction does not wait for it.
	for range 5 {
		h.Exec(t, `insert into inbox_message (consumer_name, message_id) values ('worker', $1)`, event.NewID())
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-dropped; err != nil {
		t.Fatal(err)
	}
	if pgtest.One[bool](t, h.DB, `select to_regclass($1) is not null`, old) {
		t.Error("the day still exists")
	}
	if n := pgtest.One[int](t, h.DB, `select count(*) from inbox_message`); n != 6 {
		t.Errorf("%d ids are left, want 6", n)
	}
}
