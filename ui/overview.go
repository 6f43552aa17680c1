package ui

import (
	"fmt"
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
	Away     string // why nothing is known of it
	Steps    []step
	Figures  map[string]figure
	Plots    []format.Plot
	Wrong    []finding
	Known    []finding // acknowledged
	Fine     []finding
	Examined time.Time // of the findings; zero: the doctor has not finished
	Unsure   string    // why the findings are not those of now
	Unknown  []string  // what is not known of it
	ReadOnly bool
	MayKnow  bool // findings can be acknowledged here
	Waits    bool // something waits, and moves
	Moves    bool // something came in, went out or was decided
	Stands   bool // something waits, and does not move
}

type overviewPage struct {
	Databases    []overviewDatabase
	Lines        []overviewLine // in place of Databases, if there are many
	Columns      []string
	One          string // the name of the only database
	Says         string
	Severity     string
	Fails, Warns int
	Unknown      string // what is not known
	Day          bool   // the plots show a day
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

func (q *request) overviewPage(databases ...*reads.Database) overviewPage {
	p, window := overviewPage{Day: q.URL.Query().Get("window") == "day"}, format.Hour
	if p.Day {
		window = format.Day
	}
	var unsure []string
	stand, moves := false, false
	for _, d := range databases { // all begin before the first is waited for
		_, _, _ = d.Moves.Get(q.Context(), 0)
	}
	for _, d := range databases {
		one := q.overviewOf(d)
		if len(databases) <= mostSections {
			one.Plots = plots(d, window)
		}
		for _, f := range one.Wrong {
			if f.Severity == doctor.Fail {
				p.Fails++
			} else {
				p.Warns++
			}
		}
		for _, what := range one.Unknown {
			if len(databases) > 1 {
				what = d.Name + ": " + what
			}
			unsure = append(unsure, what)
		}
		stand, moves = stand || one.Stands, moves || one.Moves || one.Waits
		p.Databases = append(p.Databases, one)
	}
	p.Unknown = strings.Join(unsure[:min(len(unsure), 3)], "; ")
	if n := int64(len(unsure)) - 3; n > 0 {
		p.Unknown += "; and " + format.Num(n) + " more"
	}
	p.Severity, p.Says = verdict(p.Fails, p.Warns, len(unsure), stand, moves)
	return p
}

// verdict says in a sentence how it is. Movement decides: what is not known, or stands, is never well.
func verdict(fails, warns, unsure int, stand, moves bool) (severity, says string) {
	switch {
	case fails > 0:
		return bad, "Something is wrong."
	case unsure > 0:
		return unknown, "Not everything is known."
	case stand:
		return look, "Something stands."
	case warns > 0:
		return look, "It works, and something needs a look."
	case moves:
		return well, "Everything moves."
	}
	return well, "Nothing waits."
}

func (q *request) overviewOf(d *reads.Database) overviewDatabase {
	one := overviewDatabase{Name: d.Name}
	st, _, why := q.stateOf(d)
	if one.Away = why; why != "" {
		one.Unknown = []string{"the database"}
		return one
	}
	m, why := q.movementOf(d)
	one.ReadOnly = !st.MayChange && !st.MayKeys
	one.Figures = figuresOf(st, m)
	one.Steps = q.h.stepsOf(d, st, m, one.Figures, why)
	for _, denied := range st.Denied {
		side, _, _ := strings.Cut(denied, ":")
		one.Unknown = append(one.Unknown, "the "+side+", which this role may not read")
	}
	var list []doctor.Finding
	list, one.Examined, one.Unsure = q.examined(d, st)
	switch {
	case one.Examined.IsZero():
		one.Unknown = append(one.Unknown, "what the doctor finds: it is looking")
	case one.Unsure != "":
		one.Unknown = append(one.Unknown, "what the doctor finds")
	}
	for _, f := range list {
		g := q.h.guided(d, f)
		switch {
		case f.Acknowledged != nil:
			one.Known = append(one.Known, g)
		case f.Severity == doctor.OK:
			one.Fine = append(one.Fine, g)
		case f.Severity == doctor.Skip: // the doctor's page has them
			if f.Unknown {
				one.Unknown = append(one.Unknown, f.Check)
			}
		default:
			one.Wrong = append(one.Wrong, g)
		}
	}
	one.MayKnow = st.MayChange
	one.moves(st, m)
	join(one.Steps, one.Wrong)
	return one
}

// moves compares what waits with what moves.
func (o *overviewDatabase) moves(st reads.State, m reads.Movement) {
	for _, s := range o.Steps {
		switch s.Severity {
		case unknown:
			o.Unknown = append(o.Unknown, "what waits: "+s.Name)
		case bad, look:
			o.Stands = o.Stands || s.Why != "" && !s.Aside
		}
	}
	compared := false // with an earlier look
	for _, k := range []reads.Kind{reads.In, reads.Out, reads.Decided} {
		o.Moves, compared = o.Moves || m.Now.Of[k] > 0, compared || m.Now.Of[k] >= 0
	}
	o.Waits = st.Outbox != nil && st.Outbox.Backlog > 0 || m.Now.Of[reads.Waiting] > 0
	if o.Waits && !compared && !o.Stands {
		o.Unknown = append(o.Unknown, fmt.Sprintf("whether what waits moves: it is known after %v", reads.SampleEvery))
	}
}

// movementOf returns the movement of a database, and why it is not that of now.
func (q *request) movementOf(d *reads.Database) (m reads.Movement, why string) {
	m, _, err := d.Moves.Get(q.Context(), min(firstLook, q.left()))
	if err != nil {
		why = reads.Away(err)
	}
	return m, why
}

// overviewLine is a database in the table of many.
type overviewLine struct {
	Name, Away  string
	Severity    string
	Says        string
	Cells       []figure // by column; without a value: the database has no such figure
	First, More string   // the worst finding, and how many others there are
}

// tabulate makes a line for each database, the worst first.
func (p *overviewPage) tabulate() {
	for _, name := range columns {
		if slices.ContainsFunc(p.Databases, func(d overviewDatabase) bool { return d.Figures[name].Name != "" }) {
			p.Columns = append(p.Columns, name)
		}
	}
	for i := range p.Databases {
		p.Lines = append(p.Lines, lineOf(&p.Databases[i], p.Columns))
	}
	slices.SortStableFunc(p.Lines, func(a, b overviewLine) int { return a.rank() - b.rank() })
	p.Databases = nil
}

// rank is lower for worse databases.
func (l *overviewLine) rank() int {
	if l.Away != "" {
		return -1
	}
	return slices.Index(severities, l.Severity)
}

func lineOf(d *overviewDatabase, columns []string) overviewLine {
	l := overviewLine{Name: d.Name, Away: d.Away}
	for _, name := range columns {
		l.Cells = append(l.Cells, d.Figures[name])
	}
	fails := 0
	for _, f := range d.Wrong {
		if f.Severity == doctor.Fail {
			fails++
		}
	}
	warns := len(d.Wrong) - fails
	l.Severity, _ = verdict(fails, warns, len(d.Unknown), d.Stands, d.Moves)
	switch {
	case d.Away != "":
		l.Severity, l.Says = bad, "away"
	case d.Examined.IsZero():
		l.Says = "looking"
	case fails > 0:
		l.Says = fmt.Sprint(fails, " wrong")
	case l.Severity == unknown:
		l.Says = "not known"
	case d.Stands:
		l.Says = "stands"
	case warns > 0:
		l.Says = fmt.Sprint(warns, " to look at")
	default:
		l.Says = "fine"
	}
	if len(d.Wrong) > 0 {
		l.First = d.Wrong[0].Check + ": " + d.Wrong[0].Found
	}
	if n := int64(len(d.Wrong)) - 1; n > 0 {
		l.More = "and " + format.Num(n) + " more"
	}
	return l
}
