package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestOwnTablesAndTriggers: those that are taken for ours are those of a migrated schema.
func TestOwnTablesAndTriggers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	made := strings.Fields(pgtest.One[string](t, db, `select string_agg(relname, ' ' order by relname) from pg_class
		where relnamespace = current_schema::regnamespace and relkind in ('r', 'p') and not relispartition`))
	if !slices.Equal(tables, made) {
		t.Errorf("the migrations make %v, and %v are known", made, tables)
	}
	list, err := readTriggers(t.Context(), Subject{DB: db.Pool, Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, tr := range list {
		own = append(own, tr.Name)
	}
	slices.Sort(own)
	if !slices.Equal(ownTriggers, own) {
		t.Errorf("the migrations make %v, and %v are known", own, ownTriggers)
	}
}

// TestTriggers: what somebody has put on our tables is named with what it can do; our own, those of another schema, and
// those that do nothing are not.
func TestTriggers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	beside := db.Beside(t, migrations.Outbox)
	look := func() []Finding {
		t.Helper()
		return slices.DeleteFunc(Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema}), func(f Finding) bool {
			return f.Check != "triggers"
		})
	}
	db.Exec(t, `create function f() returns trigger language plpgsql as $$ begin return null; end $$`)
	db.Exec(t, `create table inbox_mine (n int)`)
	db.Exec(t, `create trigger mine before insert on inbox_mine for each row execute function f()`)
	db.Exec(t, `create trigger off before insert on outbox_event for each row execute function f()`)
	db.Exec(t, `alter table outbox_event disable trigger off`)
	beside.Exec(t, `create function f() returns trigger language plpgsql as $$ begin return null; end $$`)
	beside.Exec(t, `create trigger theirs before insert on outbox_lane for each row execute function f()`)
	db.Exec(t, `select inbox_make_day('2999-01-02')`)
	expect(t, look(), "triggers", OK, "none on these tables but ours")
	for _, c := range []struct{ sql, found, means, next string }{
		{
			`create trigger "A" before update on outbox_lane for each row execute function f()`,
			`trigger "A" on outbox_lane calls f() before each row`, "swallow", `drop trigger "A" on outbox_lane`,
		},
		{
			`create trigger b after insert on inbox_message for each row execute function f()`,
			"trigger b on inbox_message calls f()", "its error is theirs", "drop trigger b on inbox_message",
		},
		{
			`create trigger p before insert on inbox_message_29990102 for each row execute function f()`,
			"trigger p on inbox_message_29990102 calls f() before each row", "swallow",
			"drop trigger p on inbox_message_29990102",
		},
		{
			`create rule c as on delete to outbox_claim do instead nothing`,
			"rule c on outbox_claim", "neither written nor deleted", "drop rule c on outbox_claim",
		},
	} {
		db.Exec(t, c.sql)
		list := look()
		if len(list) != 1 || list[0].Severity != Warn || list[0].Found != c.found ||
			!strings.Contains(list[0].Means, c.means) || !strings.Contains(list[0].Next, c.next) {
			t.Errorf("%s: %+v", c.sql, list)
			continue
		}
		db.Exec(t, list[0].Next[strings.Index(list[0].Next, "drop "):])
	}
	expect(t, look(), "triggers", OK, "none")
	for _, c := range []struct{ sql, missing string }{
		{`alter table inbox_message_any disable trigger inbox_kept`, "inbox_kept on inbox_message_any"},
		{`alter table inbox_message_29990102 disable trigger inbox_kept`, "inbox_kept on inbox_message_29990102"},
		{`drop trigger inbox_kept_whole on inbox_message_29990102`, "inbox_kept_whole on inbox_message_29990102"},
		{`drop trigger inbox_guard on inbox_watermark`, "inbox_guard on inbox_watermark"},
	} {
		db.Exec(t, c.sql)
		expect(t, look(), "triggers", Warn, "trigger "+c.missing+" is gone or disabled")
	}
}
