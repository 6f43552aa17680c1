package relay

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// The settings that are sent before a probe, and before Waits.
const (
	ProbeSettings = sql.ProbeSettings
	WaitsSettings = sql.WaitsSettings
)

// Queries returns the statements by their constants' names, with a lower-case first letter. It leaves out those that
// need a day of the archive, a publication or an operator's query.
func Queries(t testing.TB) map[string]string {
	t.Helper()
	return queries(t, "queries*.go")
}

// Worked returns those that a relay sends to the outbox's tables while it works.
func Worked(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{"due": Queries(t)["due"], "moveDue": Queries(t)["moveDue"]}
	for _, of := range []string{"archive", "bulk", "engine", "floor", "held", "sample", "waits", "wal"} {
		maps.Copy(all, queries(t, "queries_"+of+".go"))
	}
	maps.DeleteFunc(all, func(_, sql string) bool { return !strings.Contains(sql, "{schema}") })
	return all
}

// compiled are statements that seeded bugs (verify/mutations) change: in the program, and not in the source files.
var compiled = map[string]string{"takeMarked": sql.TakeMarked}

func queries(t testing.TB, files string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, sql := range pgtest.Queries(t, "internal/sql/"+files) {
		more := func(part string) bool { return strings.Contains(sql, part) }
		if !slices.ContainsFunc([]string{"{day}", "{publication}", "{query}", "effectonce_rows"}, more) {
			name = strings.ToLower(name[:1]) + name[1:]
			all[name] = cmp.Or(compiled[name], sql)
		}
	}
	return all
}

// Patient gives a relay more time to give its lanes back at its end than a stalled server costs.
func Patient(r *Relay) { r.limits.resignFor = 2 * time.Minute }

// ProveOften has a relay prove at each heartbeat that it can work.
func ProveOften(r *Relay) { r.limits.provedEvery = time.Millisecond }

// Expanded returns a query for the connection's own search_path.
func Expanded(t testing.TB, query string) string {
	t.Helper()
	sql := Queries(t)[query]
	if sql == "" {
		t.Fatalf("no query %s", query)
	}
	return pgschema.Expand(sql, "")
}

// LowestFloor returns the lowest floor of a relay's lanes.
func LowestFloor(r *Relay) int64 {
	e := r.now.Load()
	if e == nil {
		return 0
	}
	_, floors, _ := e.Lanes.Reaches()
	if len(floors) == 0 {
		return 0
	}
	return slices.Min(floors)
}

// SureFloor returns the highest floor that holds whatever the excepted transactions do.
func SureFloor(r *Relay) (highest int64) {
	for _, l := range inside(r.now.Load().Lanes).owned {
		highest = max(highest, l.floor)
	}
	return highest
}

// SetBulkFrom sets the number of events in a claim from which a lane is read in bulk.
func SetBulkFrom(r *Relay, events int) {
	r.limits.bulkFrom = events
	if e := r.now.Load(); e != nil {
		e.cycle.BulkFrom = events
	}
}

// SetExceptFrom sets how many ids beyond the floors must be drawn before open transactions are excepted.
func SetExceptFrom(r *Relay, ids int64) { r.now.Load().floors.ExceptFrom = ids }

// BulkLanes returns the number of lanes that the next claim reads in bulk.
func BulkLanes(r *Relay) int {
	return len(inside(r.now.Load().Lanes).list(func(l *laneState) bool { return l.bulk }))
}

// LowerNumbers limits the number of events in a transaction that a relay numbers.
func LowerNumbers(r *Relay, most int32) { r.limits.numbers = most }

// LowerSpan limits the bytes of the WAL for which a relay's numbers last.
func LowerSpan(r *Relay, bytes int64) { r.limits.span = bytes }
