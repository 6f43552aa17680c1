package main

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// tableRights lists the rights of each role on each table, completely: s(elect), i(nsert), u(pdate), d(elete). A
// capital letter means the whole table, a small one only the columns that the tests above write. No role may truncate,
// reference, or create triggers.
var tableRights = map[string]map[string]string{
	"append": {"effectonce_migration": "S", "outbox_event": "i", "outbox_scheduled": "i"},
	"relay": {
		"effectonce_migration": "S", "outbox_event": "SiD", "outbox_scheduled": "SD", "outbox_lane": "SU",
		"outbox_meta": "SU", "outbox_claim": "SID",
		"outbox_topic": "SIU", "relay_member": "SIUD", "outbox_held": "SIUD", "outbox_parked_key": "SIUD",
		"outbox_parked":  "SIUD",
		"outbox_archive": "SI", "outbox_paused_topic": "SID", "outbox_audit": "SI",
		"outbox_wal": "SIU", "outbox_streamed": "SIUD",
	},
	"inbox": {
		"effectonce_migration": "S", "inbox_message": "SID", "inbox_message_any": "SID", "inbox_consumer": "SIU",
		"inbox_days":       "S",
		"inbox_parked_key": "SIUD", "inbox_parked": "SIUD", "inbox_progress": "SIUD", "inbox_audit": "SI",
		"inbox_watermark": "SID", "inbox_numbering": "SIU",
	},
	"inbox_maintainer": {
		"effectonce_migration": "S", "inbox_message": "S", "inbox_days": "SU", "inbox_consumer": "S",
		"inbox_message_any": "SD", "inbox_parked": "s",
	},
	"idempotency": {
		"effectonce_migration": "S", "idempotency_key": "SIUD", "idempotency_block": "SIU", "idempotency_audit": "SI",
	},
}

// sequenceRights lists the rights of each role on sequences: s(elect) and (us)e. Otherwise only a table uses its
// sequence.
var sequenceRights = map[string]string{
	"relay outbox_event_id_seq": "s", "relay outbox_archive_pos_seq": "u",
	"idempotency idempotency_fence": "u",
}

// functionRights lists the functions that each role may execute: a table's checks run as the role that writes to it,
// and days are created as the tables' owner.
var functionRights = map[string]string{
	"idempotency idempotency_key_valid": "false",
	"relay outbox_server":               "true", "inbox inbox_server": "true",
	"inbox_maintainer inbox_make_day": "true", "inbox_maintainer inbox_drop_day": "true",
}

// producerColumns lists the columns that a producer may insert: no id, lane or time. A relay's proof has an id.
var producerColumns = map[string]string{
	"relay outbox_event": "content_type event_time headers id key message_id payload source tenant topic type",

	"outbox_event":     "content_type event_time headers key message_id payload source tenant topic type",
	"outbox_scheduled": "content_type due event_time headers key message_id payload source tenant topic type",
}

// queryGranted returns the rights of a role on each table, in the letters of may.
const queryGranted = `select c.relname::text, case when c.relowner = r.oid then 'owner' else
	(select coalesce(string_agg(case when has_table_privilege(r.oid, c.oid, p) then upper(left(p, 1))
		when p <> 'delete' and has_any_column_privilege(r.oid, c.oid, p) then left(p, 1) end, '' order by n), '')
		from unnest(array['select', 'insert', 'update', 'delete']) with ordinality as v(p, n)) ||
	(select coalesce(string_agg(' ' || p, ''), '') from unnest(array['truncate', 'references', 'trigger']) p
		where has_table_privilege(r.oid, c.oid, p)) end
	from pg_class c, pg_roles r
	where r.rolname = $1 and c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')`

// TestRolesMatrix: I10 and least privilege. A role has exactly the rights listed here on all tables, sequences and
// functions; a new table, or one grant too many, fails the test.
func TestRolesMatrix(t *testing.T) {
	t.Parallel()
	h := openHardened(t)
	collect := func(sql string, args ...any) (pairs [][2]string) {
		rows, err := h.Pool.Query(t.Context(), sql, args...)
		if err != nil {
			t.Fatal(err)
		}
		pairs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p [2]string, err error) {
			return p,
				row.Scan(&p[0], &p[1])
		})
		if err != nil {
			t.Fatal(err)
		}
		return pairs
	}
	tables := 0
	for role, wanted := range tableRights {
		name := h.prefix + "_" + role
		for _, p := range collect(queryGranted, name) {
			tables++
			want := wanted[p[0]]
			if p[1] != want {
				t.Errorf("%s on %s: %q, want %q", role, p[0], p[1], want)
			}
			if !strings.Contains(p[1], "i") {
				continue
			}
			list := collect(`select '', string_agg(a.attname, ' ' order by a.attname) from pg_attribute a
				where a.attrelid = $2::regclass and a.attnum > 0 and has_column_privilege($1, a.attrelid, a.attnum,
					'insert')`, name, p[0])
			want = cmp.Or(producerColumns[role+" "+p[0]], producerColumns[p[0]])
			if got := list[0][1]; got != want {
				t.Errorf("%s may insert the columns %q of %s, want %q", role, got, p[0], want)
			}
		}
		for _, p := range collect(`select c.relname::text, (case when has_sequence_privilege(r.oid, c.oid, 'select') then 's' else '' end) ||
			(case when has_sequence_privilege(r.oid, c.oid, 'usage') then 'u' else '' end) || (case
				when has_sequence_privilege(r.oid, c.oid, 'update') then 'U' else '' end)
			from pg_class c, pg_roles r where r.rolname = $1 and c.relnamespace = 'public'::regnamespace
				and c.relkind = 'S'`, name) {
			if want := sequenceRights[role+" "+p[0]]; p[1] != want {
				t.Errorf("%s on the sequence %s: %q, want %q", role, p[0], p[1], want)
			}
		}
		for _, p := range collect(`select p.oid::regprocedure::text, p.prosecdef::text from pg_proc p where p.pronamespace = 'public'::regnamespace
			and has_function_privilege($1, p.oid, 'execute')`, name) {
			if name, _, _ := strings.Cut(p[0], "("); functionRights[role+" "+name] != p[1] {
				t.Errorf("%s may run %s (security definer: %s)", role, p[0], p[1])
			}
		}
		// Attributes of roles: none that the server would require a password for.
		for _, p := range collect(`select concat_ws(' ', case when rolsuper then 'superuser' end, case when rolcreaterole then 'createrole' end,
			case when rolcreatedb then 'createdb' end, case when rolcanlogin then 'login' end, case
			when rolreplication then 'replication' end,
			case when rolbypassrls then 'bypassrls' end), has_schema_privilege($1, 'public', 'create')::text
			from pg_roles where rolname = $1`, name) {
			if p[0] != "" || p[1] != "false" {
				t.Errorf("%s is %q, may create in the schema: %s", role, p[0], p[1])
			}
		}
	}
	if tables < 5*20 {
		t.Errorf("only %d grants were compared", tables)
	}
	for _, p := range collect(`select oid::regprocedure::text, coalesce(array_to_string(proconfig, ' '), '') from pg_proc
		where pronamespace = 'public'::regnamespace and prosecdef`) {
		if p[1] != "search_path=pg_catalog, pg_temp" {
			t.Errorf("%s runs as its owner, and its caller may set the search_path: %q", p[0], p[1])
		}
	}
	// The matrix names only existing tables.
	all := collect(
		`select c.relname::text, '' from pg_class c where c.relnamespace = 'public'::regnamespace
			and c.relkind in ('r', 'p')`)
	for role, wanted := range tableRights {
		for table := range wanted {
			if !slices.Contains(all, [2]string{table, ""}) {
				t.Errorf("%s: there is no table %s", role, table)
			}
		}
	}
	// The test can fail: one grant too many is detected.
	h.Exec(t, "grant truncate on outbox_event to "+h.prefix+"_relay")
	for _, p := range collect(queryGranted, h.prefix+"_relay") {
		if p[0] == "outbox_event" && p[1] != "SiD truncate" {
			t.Errorf("an extra grant is listed as %q", p[1])
		}
	}
}
