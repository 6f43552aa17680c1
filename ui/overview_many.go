package ui

import (
	"slices"
	"time"

	"github.com/effectonce/effectonce/internal/doctor"
)

// overviewLine is a database in the table of many.
type overviewLine struct {
	Name, Away  string
	Severity    string
	Fails       int
	Warns       int
	Looking     bool      // the doctor has not finished
	Cells       []*figure // by column; nil: the database has no such figure
	First, More string    // the worst finding, and how many others there are
}

// columns are the figures of the table, in its order.
var columns = []string{
	"Backlog", "Oldest", "In", "Out", "Held", "Refused", "Decided", "Halted", "Failed", "Quarantined", "Slot",
}

// tabulate makes a line for each database, the worst first.
func (p *overviewPage) tabulate() {
	used := map[string]bool{}
	for _, d := range p.Databases {
		for _, f := range d.Figures {
			used[f.Name] = true
		}
	}
	for _, name := range columns {
		if used[name] {
			p.Columns = append(p.Columns, name)
		}
	}
	for i := range p.Databases {
		p.Lines = append(p.Lines, lineOf(&p.Databases[i], p.Columns))
	}
	slices.SortStableFunc(p.Lines, func(a, b overviewLine) int {
		return a.rank() - b.rank()
	})
	p.Databases = nil
}

// rank is lower for worse databases.
func (l *overviewLine) rank() int {
	if l.Away != "" {
		return 0
	}
	return 1 + slices.Index([]string{bad, look, well}, l.Severity)
}

func lineOf(d *overviewDatabase, columns []string) overviewLine {
	l := overviewLine{Name: d.Name, Away: d.Away, Looking: d.Away == "" && d.Examined.IsZero(), Severity: well}
	for _, name := range columns {
		var cell *figure
		if at := slices.IndexFunc(d.Figures, func(f figure) bool { return f.Name == name }); at >= 0 {
			cell = &d.Figures[at]
		}
		l.Cells = append(l.Cells, cell)
	}
	for _, f := range d.Wrong { // "fail" comes first
		if f.Severity == doctor.Fail {
			l.Fails++
		} else {
			l.Warns++
		}
	}
	switch {
	case d.Away != "" || l.Fails > 0:
		l.Severity = bad
	case l.Warns > 0 || l.Looking:
		l.Severity = look
	}
	if len(d.Wrong) > 0 {
		l.First = d.Wrong[0].Check + ": " + d.Wrong[0].Found
	}
	if n := int64(len(d.Wrong)) - 1; n > 0 {
		l.More = "and " + num(n) + " more"
	}
	return l
}

// How many reads all databases together may have under way: hundreds are not asked at the same moment.
const (
	mostLooks        = 8
	mostExaminations = 4
)

// limits bound the reads of all databases.
type limits struct{ looks, examinations chan struct{} }

// left returns how long the page may still wait for all databases. Its first call starts all reads.
func (q *request) left() time.Duration {
	if q.until.IsZero() {
		q.until = time.Now().Add(q.h.cfg.Timeout)
		for _, d := range q.h.databases {
			d.state.get(q.Context(), 0)
		}
	}
	return max(time.Until(q.until), 0)
}
