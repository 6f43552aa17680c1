package relay_test

import (
	"encoding/json"
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
	Index  string     `json:"Index Name"`
	Cond   string     `json:"Index Cond"`
	Filter string     `json:"Filter"`
	Plans  []planNode `json:"Plans"`
}

// TestPlansMadeOverNothing: a session keeps the plan that it made while a table was empty, and all indexes of an empty
// table cost the same. No such plan may read a whole table or index, through an index without a condition on its first
// column. Where autovacuum had seen outbox_held empty, a relay held the events of a dead partition at a seventh of its
// rate, until the next autovacuum.
func TestPlansMadeOverNothing(t *testing.T) {
	t.Parallel()
	f := driven(t, outboxDB(t))
	grow := map[string]bool{
		"outbox_event": true, "outbox_claim": true, "outbox_held": true, "outbox_parked": true,
		"outbox_parked_key": true, "outbox_scheduled": true,
	}
	first := map[string]string{} // column, by index
	for _, one := range pgtest.One[[]string](t, f.db,
		`select array_agg(indexrelid::regclass || ' ' || pg_get_indexdef(indexrelid, 1, true)) from pg_index`) {
		index, column, _ := strings.Cut(one, " ")
		first[index] = column
	}
	looked := 0
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			f.db.Exec(t, `vacuum analyze`)
		}
		for _, name := range slices.Sorted(maps.Keys(relay.Worked(t))) {
			for _, n := range f.plan(name) {
				byIndex := strings.Contains(n.Type, "Index")
				switch {
				case !grow[n.Table]:
				case byIndex && n.Cond != "":
					if looked++; !strings.Contains(n.Cond, first[n.Index]) {
						t.Errorf("%s (analyzed: %v): %s by %s, without its first column, %s", name, analyzed, n.Index,
							n.Cond, first[n.Index])
					}
				case n.Type == "Seq Scan", byIndex && n.Filter != "":
					t.Errorf("%s (analyzed: %v): all of %s (%s) for %s", name, analyzed, n.Table, n.Index, n.Filter)
				}
			}
		}
	}
	if looked < 100 {
		t.Errorf("only %d conditions were seen", looked)
	}
}

// plan returns the nodes of the plan that a relay's session keeps.
func (f *floors) plan(query string) (nodes []planNode) {
	f.t.Helper()
	tx, end := f.planned(query)
	defer end()
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
			walk(one)
		}
	}
	walk(plans[0].Plan)
	return nodes
}
