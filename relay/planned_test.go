package relay_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// planNode is a node of a plan.
type planNode struct {
	Type   string     `json:"Node Type"`
	Table  string     `json:"Relation Name"`
	Alias  string     `json:"Alias"`
	Index  string     `json:"Index Name"`
	Cond   string     `json:"Index Cond"`
	Filter string     `json:"Filter"`
	Join   string     `json:"Join Filter"`
	Plans  []planNode `json:"Plans"`
	// Limited: a limit ends it.
	Limited bool `json:"-"`
}

// growing are the tables that may be empty at one time and huge at another.
var growing = []string{
	"outbox_event", "outbox_claim", "outbox_held", "outbox_parked", "outbox_parked_key", "outbox_scheduled",
}

// TestPlansMadeOverNothing: a session keeps the plan that it made while a table was empty, or that a vacuum had
// recorded as empty, and all indexes of an empty table cost the same. No such plan may read a whole table or index, or
// through an index without a condition on its first column: the condition may stand above, in a join, and then each row
// of the table is read for nothing. Where autovacuum had seen outbox_held empty, a relay held the events of a dead
// partition at a seventh of its rate, until the next autovacuum; over an outbox_event that it had seen empty, a relay
// that began published nothing for minutes.
func TestPlansMadeOverNothing(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	first := map[string]string{} // column, by index
	for _, one := range pgtest.One[[]string](t, f.db,
		`select array_agg(indexrelid::regclass || ' ' || pg_get_indexdef(indexrelid, 1, true)) from pg_index`) {
		index, column, _ := strings.Cut(one, " ")
		first[index] = column
	}
	for _, table := range growing {
		f.db.Exec(t, "alter table "+table+" set (autovacuum_enabled = off)")
	}
	looked := 0
	look := func(state string) {
		for _, name := range slices.Sorted(maps.Keys(relay.Worked(t))) {
			nodes := f.plan(name)
			for _, n := range nodes {
				if trouble := cmp.Or(n.joined(nodes, true), n.trouble(first)); trouble != "" {
					t.Errorf("%s (%s): %s", name, state, trouble)
				}
				if slices.Contains(growing, n.Table) && n.Cond != "" {
					looked++
				}
			}
		}
	}
	look("new tables")
	f.db.Exec(t, `vacuum analyze`)
	look("empty at a vacuum")
	f.recordAsEmpty()
	look("full, and recorded as empty")
	f.lookAtOperators("full, and recorded as empty")
	f.db.Exec(t, `analyze`)
	look("full")
	f.lookAtOperators("full")
	if looked < 300 {
		t.Errorf("only %d conditions were seen", looked)
	}
}

// lookAtOperators looks at the plans of operators' statements, which run with the server's settings.
func (f *floors) lookAtOperators(state string) {
	f.t.Helper()
	for _, name := range operated(f.t) {
		nodes := f.plan(name, `set local enable_seqscan = on`, `set local enable_bitmapscan = on`,
			`set local enable_hashjoin = on`, `set local enable_mergejoin = on`)
		for _, n := range nodes {
			if trouble := n.joined(nodes, false); trouble != "" {
				f.t.Errorf("%s (%s): %s", name, state, trouble)
			}
		}
	}
}

// operated are the statements of operators. These may read a table, but not once for each row of another.
func operated(t *testing.T) (names []string) {
	t.Helper()
	reads := map[string]string{
		"uncertain": "the other side are lanes", "unsure": "the other side are lanes",
		"unacked": "it compares aggregates by topic",
	}
	worked := relay.Worked(t)
	for name, sql := range relay.Queries(t) {
		known := worked[name] != "" || reads[name] != ""
		if !known && strings.Contains(sql, "{schema}outbox_") && !strings.Contains(sql, "lock table") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// joined says which rows of a growing table the node reads only to compare them: those of a whole table or, in parts,
// also those that an index finds.
func (n planNode) joined(all []planNode, parts bool) string {
	for _, one := range all {
		read := slices.Contains(growing, one.Table) && !one.Limited && (one.Type == "Seq Scan" ||
			strings.Contains(one.Type, "Index") && (parts || one.Cond == ""))
		if read && n.Join != "" && strings.Contains(n.Join, one.Alias+".") {
			return fmt.Sprintf("%s (%s) is read by %q and compared in a join, %s", one.Table, one.Index, one.Cond,
				n.Join)
		}
	}
	return ""
}

// trouble says what the node reads of a growing table that it should not.
func (n planNode) trouble(first map[string]string) string {
	byIndex := strings.Contains(n.Type, "Index")
	switch {
	case !slices.Contains(growing, n.Table):
	case byIndex && n.Cond != "" && !strings.Contains(n.Cond, first[n.Index]):
		return fmt.Sprintf("%s by %s, without its first column, %s", n.Index, n.Cond, first[n.Index])
	case (byIndex && n.Cond == "" || n.Type == "Seq Scan") && (n.Filter != "" || !n.Limited):
		return fmt.Sprintf("all of %s (%s) for %s", n.Table, n.Index, n.Filter)
	}
	return ""
}

// recordAsEmpty has a vacuum record the growing tables as empty though they are not: it finds only rows that a snapshot
// keeps, and more are inserted after it.
func (f *floors) recordAsEmpty() {
	f.t.Helper()
	fill := func(from, to int) {
		for _, sql := range []string{
			`insert into outbox_event (topic, key, type)
				select 't', 'k' || g, 'T' from generate_series($1::int, $2::int) g`,
			`insert into outbox_claim (lane, first_seq, ids, seqs)
				select g % 32, g, array[g], array[g] from generate_series($1::int, $2::int) g`,
			`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at) select g % 32, g, 't' || g % 3, g % 50, g, false, gen_random_uuid(), '', '',
				'h' || g, 'T', '', now() from generate_series($1::int, $2::int) g`,
			`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic,
				key, type, content_type, created_at) select g % 32, g + 1000000, g % 2 = 0, false, 1, gen_random_uuid(),
				'', '', 't', 'p' || g, 'T', '', now() from generate_series($1::int, $2::int) g`,
			`insert into outbox_parked_key (lane, tenant, topic, key, reason, code)
				select g % 32, '', 't', 'p' || g, 'r', 'c' from generate_series($1::int, $2::int) g`,
			`insert into outbox_scheduled (due, topic, key, type)
				select now() + g * interval '1 s', 't', 'k' || g, 'T' from generate_series($1::int, $2::int) g`,
		} {
			f.db.Exec(f.t, sql, from, to)
		}
	}
	fill(1, 1000)
	f.begin(f.db, `set transaction isolation level repeatable read`, `select from outbox_lane`)
	for _, table := range growing {
		f.db.Exec(f.t, "delete from "+table)
	}
	f.db.Exec(f.t, `vacuum analyze`)
	fill(1001, 20000)
	for _, table := range growing {
		if !pgtest.One[bool](f.t, f.db, `select relpages > 0 and reltuples = 0 from pg_class where oid = $1::regclass`,
			table) {
			f.t.Fatalf("%s is not recorded as empty", table)
		}
	}
}

// plan returns the nodes of the plan that a relay's session keeps, or another one with these settings.
func (f *floors) plan(query string, settings ...string) (nodes []planNode) {
	f.t.Helper()
	tx, end := f.planned(query)
	defer end()
	for _, s := range settings {
		_, err := tx.Exec(f.t.Context(), s)
		f.must(err)
	}
	var nulls string
	f.must(tx.QueryRow(f.t.Context(), `select coalesce('(' || string_agg('null', ', ') || ')', '')
		from pg_prepared_statements, unnest(parameter_types) where name = 'planned'`).Scan(&nulls))
	var text []byte
	f.must(tx.QueryRow(f.t.Context(), "explain (format json) execute planned"+nulls, pgx.QueryExecModeSimpleProtocol).
		Scan(&text))
	var plans []struct{ Plan planNode }
	f.must(json.Unmarshal(text, &plans))
	var walk func(n planNode)
	walk = func(n planNode) {
		nodes = append(nodes, n)
		for _, one := range n.Plans {
			one.Limited = n.Type == "Limit"
			walk(one)
		}
	}
	walk(plans[0].Plan)
	return nodes
}
