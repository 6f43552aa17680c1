package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// poolWith is a pool whose sessions begin with settings, as of a role or a URL.
func poolWith(t *testing.T, db *pgtest.DB, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	cfg := db.Pool.Config()
	for name, value := range settings {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestIdleSessionsLast: a role's idle_session_timeout ends no session of a relay that waits for events.
func TestIdleSessionsLast(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	r, err := relay.New(poolWith(t, db, map[string]string{"idle_session_timeout": "5s"}), to, config())
	if err != nil {
		t.Fatal(err)
	}
	driver, err := relay.Drive(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	step := func() int {
		fill(t, db, 1, 1)
		if _, err := driver.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		return pgtest.One[int](t, db, `select pid from pg_stat_activity where datname = current_database()
			and application_name = 'effectonce relay driven'`)
	}
	pid := step()
	short := db.Connect(t)
	if _, err := short.Exec(t.Context(), "set idle_session_timeout = '5s'"); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "the end of a session with this timeout", func() (bool, error) {
		return pgtest.One[bool](t, db, `select not exists (select from pg_stat_activity where pid = $1)`,
			short.PgConn().PID()), nil
	})
	if now := step(); now != pid {
		t.Errorf("session %d has ended, %d goes on", pid, now)
	}
}

// TestFormsOfTexts: a role's forms of times, bytes and literals, and its encoding, change nothing of what is published,
// in the query modes that poolers need either.
func TestFormsOfTexts(t *testing.T) {
	t.Parallel()
	for setting, value := range map[string]string{
		"datestyle": "german", "bytea_output": "escape", "standard_conforming_strings": "off",
		"client_encoding": "latin1",
	} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
			t.Run(setting+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				db, to := outboxDB(t), &memory{}
				to.verdict = func(call int, _ event.Event) error {
					if call == 1 {
						return refusedEvent
					}
					return nil
				}
				at := time.Date(2026, 2, 28, 23, 59, 59, 123456000, time.UTC)
				db.Exec(t, `insert into outbox_event (topic, key, type, payload, event_time)
					values ('payments', 'ü', 'T', $1, $2)`, []byte{0, 255, '\\', 'x'}, at)
				cfg := poolWith(t, db, map[string]string{setting: value}).Config()
				cfg.ConnConfig.DefaultQueryExecMode = mode
				pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				r, err := relay.New(pool, to, config(func(c *relay.Config) { c.Schema = db.Schema }))
				if err != nil {
					t.Fatal(err)
				}
				stop := startRelay(t, r)
				pgtest.AwaitSQL(t, db, "select exists (select from outbox_parked)")
				o, err := operator.New(db.Pool, db.Schema, "kim")
				if err == nil {
					_, err = o.ReleaseKey(t.Context(), "", "payments", "ü", admin.Seen{}, "mended")
				}
				if err != nil {
					t.Fatal(err)
				}
				pgtest.AwaitSQL(t, db, "select not exists (select from outbox_parked)")
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if log := to.events(); len(log) != 1 || log[0].Key != "ü" || !log[0].Time.Equal(at) ||
					string(log[0].Payload) != "\x00\xff\\x" {
					t.Errorf("published %+v", log)
				}
			})
		}
	}
}

// TestStatementsMayWarn: shortly before transaction ids run out, each statement that draws one warns, and the server
// works. So do triggers of users. Only the warning of a COMMIT says that it may be lost.
func TestStatementsMayWarn(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	db.Exec(t, `create function warns() returns trigger language plpgsql as $$ begin
		raise warning 'database "app" must be vacuumed within 30000000 transactions'; return null; end $$`)
	for _, table := range []string{"outbox_lane", "outbox_claim", "relay_member", "outbox_event"} {
		db.Exec(t, `create trigger warns after insert or update or delete on `+table+` execute function warns()`)
	}
	fill(t, db, 10, 10)
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if again := checkOrder(t, to.events(), 10); again > 0 {
		t.Errorf("%d events were sent twice", again)
	}
}

// TestRowSecurityIsRefused: rows that row-level security hides would be neither published nor waited for. A relay
// says so, and the doctor names the table.
func TestRowSecurityIsRefused(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	role := fmt.Sprintf("rls%d", time.Now().UnixNano())
	db.Exec(t, "create role "+role)
	defer func() { db.Exec(t, "drop owned by "+role); db.Exec(t, "drop role "+role) }()
	for _, sql := range []string{
		"usage on schema ", "all on all tables in schema ", "all on all sequences in schema ",
	} {
		db.Exec(t, "grant "+sql+db.Schema+" to "+role)
	}
	as := poolWith(t, db, map[string]string{"role": role})
	step := func() error {
		r, err := relay.New(as, to, config())
		if err != nil {
			return err
		}
		driver, err := relay.Drive(t.Context(), r)
		if err == nil {
			_, err = driver.Step(t.Context())
			driver.Close()
		}
		return err
	}
	if err := step(); err != nil {
		t.Fatalf("before: %v", err)
	}
	for _, table := range []string{"outbox_event", "outbox_parked_key", "outbox_lane"} {
		db.Exec(t, "alter table "+table+" enable row level security")
		d, err := operator.Diagnose(t.Context(), as, db.Schema, false)
		if err != nil || !strings.Contains(strings.Join(d.MissingRights, "\n"), "table "+table+": bypassrls") {
			t.Errorf("%s: the doctor finds %q, %v", table, d.MissingRights, err)
		}
		err = step()
		if err == nil || !strings.Contains(err.Error(), `"`+table+`"`) {
			t.Errorf("a relay from which rows of %s are hidden: %v", table, err)
		}
		db.Exec(t, "alter table "+table+" disable row level security")
	}
	o, err := operator.New(as, db.Schema, "kim")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"outbox_event", "outbox_lane", "outbox_held", "outbox_parked", "outbox_scheduled"} {
		db.Exec(t, "alter table "+table+" enable row level security")
		hidden := func(what string, err error) {
			if err == nil || !strings.Contains(err.Error(), `"`+table+`"`) {
				t.Errorf("%s, with hidden rows of %s: %v", what, table, err)
			}
		}
		_, err := operator.ReadStatus(t.Context(), as, db.Schema)
		hidden("status", err)
		if table != "outbox_scheduled" {
			_, err = o.Fence(t.Context(), "a test")
			hidden("fence", err)
		}
		db.Exec(t, "alter table "+table+" disable row level security")
	}
}

// TestRowsAreMissing: a schema without its data has no lanes and no numbering. The relay does not start, and a fence
// makes both.
func TestRowsAreMissing(t *testing.T) {
	t.Parallel()
	for table, lanes := range map[string]int64{"outbox_lane": relay.Lanes, "outbox_meta": 0} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			rowsAreMissing(t, table, lanes)
		})
	}
}

func rowsAreMissing(t *testing.T, table string, lanes int64) {
	db, to := outboxDB(t), &memory{}
	fill(t, db, 10, 10)
	db.Exec(t, "truncate "+table)
	ended := make(chan error, 1)
	go func() { ended <- newRelay(t, db, to, config()).Run(t.Context()) }()
	pgtest.Await(t, "a relay without lanes that ends", func() (bool, error) {
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "relay fence") {
				t.Errorf("a relay without lanes ended with %v", err)
			}
			return true, nil
		default:
			return false, nil
		}
	})
	d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
	if err != nil || d.MissingLanes != lanes || d.Unnumbered != (lanes == 0) {
		t.Errorf("the doctor misses %d lanes, and a numbering: %v, %v", d.MissingLanes, d.Unnumbered, err)
	}
	if _, err := newOperator(t, db).Fence(t.Context(), "a table was truncated"); err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, newRelay(t, db, to, config()))
	awaitDrained(t, db)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	checkOrder(t, to.events(), 10)
}

// TestP8RefusedDueStopsNothing: a user's trigger fails for what comes due in one lane, as one does that needs a setting
// of the session. What the lane has beside it, what is due in other lanes, and the other lanes of the pump go on.
func TestP8RefusedDueStopsNothing(t *testing.T) {
	t.Parallel()
	refuse := func(t *testing.T, db *pgtest.DB, code string, mode func(c *relay.Config), ready func()) {
		to := &memory{}
		fill(t, db, 64, 64)
		db.Exec(t, `create function tenant() returns trigger language plpgsql as $$ begin
				if new.key = 'due' then raise exception 'no tenant' using errcode = '`+code+`'; end if;
				return new; end $$`)
		db.Exec(t, `create trigger tenant before insert on outbox_event for each row execute function tenant()`)
		db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, message_id)
				select now() - interval '1 s', 'payments', k, 'T', gen_random_uuid()
				from unnest('{due,other,third,fourth}'::text[]) k`)
		var said outages
		stop := startRelay(t, newRelay(t, db, to, config(mode, func(c *relay.Config) { c.Pumps = 1; said.observe(c) })))
		ready()
		awaitDrained(t, db)
		pgtest.AwaitSQL(t, db, `select count(*) = 1 and min(s.key) = 'due' from outbox_scheduled s`)
		fill(t, db, 64, 64)
		awaitDrained(t, db)
		pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like '%no tenant%')`)
		said.is(t, "while a lane is refused", 0, 0)
		db.Exec(t, "drop trigger tenant on outbox_event")
		pgtest.AwaitSQL(t, db, "select not exists (select from outbox_scheduled)")
		awaitDrained(t, db)
		pgtest.AwaitSQL(t, db, `select bool_and(trouble = '') from relay_member`)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	for _, code := range []string{"42704", "22012", "40001", "40003", "53100"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			refuse(t, outboxDB(t), code, func(*relay.Config) {}, func() {})
		})
	}
	t.Run("from the WAL", func(t *testing.T) {
		t.Parallel()
		db, _ := walDB(t)
		refuse(t, db, "42704", fromWAL, func() { awaitStreaming(t, db) })
	})
}

// TestP8RefusedLanesAloneAreNoOutage: nothing has work but lanes that the server refuses. They are named, the server is
// not called away, and another lane's event does not wait for them.
func TestP8RefusedLanesAloneAreNoOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ when, what, events, left string }{
		"settles": {
			"before delete on outbox_event", "old",
			`insert into outbox_event (topic, key, type) select 'payments', k, 'T' from unnest('{a,b,c,d}'::text[]) k`,
			"outbox_event",
		},
		"due events": {
			"before insert on outbox_event", "new",
			`insert into outbox_scheduled (due, topic, key, type, message_id)
				select now() - interval '1 s', 'payments', k, 'T', gen_random_uuid() from unnest('{a,b,c,d}'::text[]) k`,
			"outbox_scheduled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			db.Exec(t, c.events)
			db.Exec(t, `create sequence refusals;
				create function refuse() returns trigger language plpgsql as $$ begin
					perform nextval('refusals');
					raise exception 'the fault of %', `+c.what+`.key using errcode = '22012';
				end $$;
				create trigger refuse `+c.when+` for each row when (`+c.what+`.key <> 'innocent')
					execute function refuse()`)
			var said outages
			stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) { c.Pumps = 1; said.observe(c) })))
			pgtest.AwaitSQL(t, db, "select last_value > 24 from refusals")
			pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like '%the fault of%')`)
			said.is(t, "while all lanes with work are refused", 0, 0)
			db.Exec(t, `insert into outbox_event (topic, key, type) values ('payments', 'innocent', 'T')`)
			pgtest.AwaitSQL(t, db, "select not exists (select from outbox_event where key = 'innocent')")
			db.Exec(t, "drop trigger refuse on outbox_event")
			pgtest.AwaitSQL(t, db, "select not exists (select from "+c.left+")")
			awaitDrained(t, db)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestP8RefusedDueDoesNotStopOnce: the same for Once, which names what was refused.
func TestP8RefusedDueDoesNotStopOnce(t *testing.T) {
	t.Parallel()
	db, to := outboxDB(t), &memory{}
	fill(t, db, 64, 64)
	db.Exec(t, `create function tenant() returns trigger language plpgsql as $$ begin
			if new.key = 'due' then raise exception 'no tenant'; end if;
			return new; end $$`)
	db.Exec(t, `create trigger tenant before insert on outbox_event for each row execute function tenant()`)
	db.Exec(t, `insert into outbox_scheduled (due, topic, key, type, message_id)
			select now() - interval '1 s', 'payments', k, 'T', gen_random_uuid() from unnest('{due,other}'::text[]) k`)
	n, err := newRelay(t, db, to, config()).Once(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no tenant") {
		t.Errorf("Once says %v", err)
	}
	if n != 65 || pgtest.One[string](t, db, "select string_agg(key, ',') from outbox_scheduled") != "due" {
		t.Errorf("%d events are published, want 64 and one that was due", n)
	}
}

// TestP8DueEventsAreNotTakenAway: a user's trigger drops events, as a producer's append would be told. A scheduled one
// waits and is named; it is published once the trigger is gone.
func TestP8DueEventsAreNotTakenAway(t *testing.T) {
	t.Parallel()
	take := func(t *testing.T, db *pgtest.DB, mode func(c *relay.Config), ready func()) {
		to := &memory{}
		db.Exec(t, `create function away() returns trigger language plpgsql as 'begin return null; end';
			create trigger away before insert on outbox_event for each row when (new.key = 'due')
				execute function away()`)
		stop := startRelay(t, newRelay(t, db, to, config(mode)))
		ready()
		db.Exec(t, `insert into outbox_scheduled (due, topic, key, type) select now(), 'payments', k, 'T'
			from unnest('{due,other}'::text[]) k`)
		pgtest.AwaitSQL(t, db, `select exists (select from relay_member where trouble like '%takes them away%')`)
		pgtest.AwaitSQL(t, db, `select count(*) = 1 and min(key) = 'due' from outbox_scheduled`)
		db.Exec(t, "drop trigger away on outbox_event")
		pgtest.AwaitSQL(t, db, "select not exists (select from outbox_scheduled)")
		awaitDrained(t, db)
		pgtest.AwaitSQL(t, db, `select bool_and(trouble = '') from relay_member`)
		if err := stop(); err != nil || to.count() != 2 {
			t.Fatalf("%d events are published, want 2: %v", to.count(), err)
		}
	}
	t.Run("from the table", func(t *testing.T) {
		t.Parallel()
		take(t, outboxDB(t), func(*relay.Config) {}, func() {})
	})
	t.Run("from the WAL", func(t *testing.T) {
		t.Parallel()
		db, _ := walDB(t)
		take(t, db, fromWAL, func() { awaitStreaming(t, db) })
	})
}
