package ui

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// overviewDatabase is the section of one database.
type overviewDatabase struct {
	Name     string
	At       time.Time // of the figures; zero: not read yet
	Away     string    // why there are none
	Figures  []figure
	Wrong    []finding
	Fine     []finding
	Examined time.Time // of the findings; zero: the doctor has not finished
	Unsure   string    // why the findings are not those of now
	ReadOnly bool
	Denied   bool // the role may not read all of it
}

type overviewPage struct {
	Databases             []overviewDatabase
	Lines                 []overviewLine // in place of Databases, if there are many
	Columns               []string
	One                   string // the name of the only database
	Severity              string
	Fails, Warns, Unknown int
}

// mostSections is how many databases get a section each. More are a table.
const mostSections = 5

func overview(q *request) error {
	if q.who.Scope != nil { // the figures count all topics
		http.Redirect(q.w, q.Request, q.h.path("failures"), http.StatusSeeOther)
		return nil
	}
	p := q.overviewPage(q.h.databases...)
	if len(p.Databases) > mostSections {
		p.tabulate()
	}
	return q.render("overview", http.StatusOK, view{Title: "Overview", Nav: "overview", Live: true, Body: p})
}

// overviewOne is the overview of one database.
func overviewOne(q *request) error {
	p := q.overviewPage(q.db)
	p.One = q.db.Name
	return q.render("overview", http.StatusOK, view{Title: p.One, Nav: "overview", Live: true, Body: p})
}

func (q *request) overviewPage(databases ...*reads.Database) (p overviewPage) {
	for _, d := range databases {
		one := q.overviewOf(d)
		if one.Away+one.Unsure != "" || one.Denied {
			p.Unknown++
		}
		for _, f := range one.Wrong {
			if f.Severity == doctor.Fail {
				p.Fails++
			} else {
				p.Warns++
			}
		}
		p.Databases = append(p.Databases, one)
	}
	switch {
	case p.Fails+p.Unknown > 0:
		p.Severity = bad
	case p.Warns > 0:
		p.Severity = look
	default:
		p.Severity = well
	}
	return p
}

func (q *request) overviewOf(d *reads.Database) overviewDatabase {
	st, at, why := q.stateOf(d)
	one := overviewDatabase{Name: d.Name, At: at, Away: why}
	if why != "" {
		return one
	}
	one.Denied = len(st.Denied) > 0
	one.ReadOnly = !st.MayChange && !st.MayKeys
	if st.Outbox != nil {
		one.Figures = append(one.Figures, q.h.outboxFigures(d, st)...)
	}
	if st.HasInbox {
		one.Figures = append(one.Figures, q.h.inboxFigures(d, st)...)
	}
	if st.Keys != nil {
		one.Figures = append(one.Figures, q.h.keyFigures(*st.Keys)...)
	}
	var list []doctor.Finding
	list, one.Examined, one.Unsure = q.examined(d, st)
	for _, f := range list {
		g := q.h.guided(d, f)
		switch f.Severity {
		case doctor.OK:
			one.Fine = append(one.Fine, g)
		case doctor.Skip: // the doctor's page has them
		default:
			one.Wrong = append(one.Wrong, g)
		}
	}
	slices.SortStableFunc(one.Wrong, func(a, b finding) int { // "fail" before "warn"
		return strings.Compare(string(a.Severity), string(b.Severity))
	})
	return one
}

// overviewLine is a database in the table of many.
type overviewLine struct {
	Name, Away  string
	Severity    string
	Fails       int
	Warns       int
	Looking     bool      // the doctor has not finished
	Unsure      string    // why its findings are not those of now
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
	l := overviewLine{
		Name: d.Name, Away: d.Away, Looking: d.Away == "" && d.Examined.IsZero(), Unsure: d.Unsure, Severity: well,
	}
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
	case l.Warns > 0 || l.Unsure != "":
		l.Severity = look
	}
	if len(d.Wrong) > 0 {
		l.First = d.Wrong[0].Check + ": " + d.Wrong[0].Found
	}
	if n := int64(len(d.Wrong)) - 1; n > 0 {
		l.More = "and " + format.Num(n) + " more"
	}
	return l
}
