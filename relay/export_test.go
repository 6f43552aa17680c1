package relay

import (
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// Queries are the statements, by the constant's name with a small letter. Those about one day of the archive, a
// publication or a person's query are no statements yet, or need that one.
func Queries(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name, sql := range pgtest.Queries(t, "internal/sql/queries*.go") {
		more := func(part string) bool { return strings.Contains(sql, part) }
		if !slices.ContainsFunc([]string{"{day}", "{publication}", "{query}", "effectonce_rows"}, more) {
			all[strings.ToLower(name[:1])+name[1:]] = sql
		}
	}
	return all
}

// Expanded is a query for the connection's own search_path.
func Expanded(t testing.TB, query string) string {
	t.Helper()
	sql := Queries(t)[query]
	if sql == "" {
		t.Fatalf("no query %s", query)
	}
	return pgschema.Expand(sql, "")
}

// LowestFloor is the lowest of the floors of a relay's lanes.
func LowestFloor(r *Relay) int64 {
	_, floors, _ := r.lanes.Reaches()
	if len(floors) == 0 {
		return 0
	}
	return slices.Min(floors)
}

// SetBulkFrom lets lanes that had so many events be read in bulk.
func SetBulkFrom(r *Relay, events int) { r.bulkFrom = events }

// SetExceptFrom lets transactions that stay open be excepted once so many ids were drawn beyond the floors.
func SetExceptFrom(r *Relay, ids int64) { r.exceptFrom = ids }

// BulkLanes is how many lanes the next claim reads in bulk.
func BulkLanes(r *Relay) int {
	return len(inside(r.lanes).list(func(l *laneState) bool { return l.bulk }))
}

// LowerNumbers makes a relay number only that many events of a transaction.
func LowerNumbers(r *Relay, most int32) { r.numbers = most }

// LowerSpan makes a relay's numbers last for only so many bytes of the WAL.
func LowerSpan(r *Relay, bytes int64) { r.span = bytes }
