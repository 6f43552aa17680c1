//go:build bugs

package inbox

import "github.com/effectonce/effectonce/internal/seeded"

// seedRaise puts the bug of the shortest window into the statement, if it is switched on.
func seedRaise(sql string) string {
	seeded.Replace(seeded.InboxShortestWindow, &sql, "max(window_days)", "min(window_days)")
	return sql
}
