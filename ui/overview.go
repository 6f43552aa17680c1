package ui

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay"
)

// Severities, as classes of the stylesheet.
const (
	well = "ok"
	look = "warn"
	bad  = "fail"
)

// figure is one number of the overview.
type figure struct {
	Name, Value, Unit, Note string
	Severity                string // empty: neutral
	Href                    string
	Plot                    plot
}

// finding is a finding of the doctor, with links.
type finding struct {
	doctor.Finding
	Runbook  string // a section of docs/runbooks; empty: none
	Href, Do string // the page with the remedy, and its name
}

// overviewDatabase is the section of one database.
type overviewDatabase struct {
	Name     string
	At       time.Time // of the figures; zero: not read yet
	Away     string    // why there are none
	Figures  []figure
	Wrong    []finding
	Fine     []finding
	Examined time.Time // of the findings; zero: the doctor has not finished
	ReadOnly bool
}

type overviewPage struct {
	Databases             []overviewDatabase
	Lines                 []overviewLine // in place of Databases, if there are many
	Columns               []string
	One                   string // the name of the only database
	Severity              string
	Fails, Warns, Unknown int
}

// firstLook is how long a page waits for the first findings.
const firstLook = 2 * time.Second

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

func (q *request) overviewPage(databases ...*database) (p overviewPage) {
	for _, d := range databases {
		one := q.overviewOf(d)
		if one.Away != "" || one.Examined.IsZero() {
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

func (q *request) overviewOf(d *database) overviewDatabase {
	st, at, why := q.stateOf(d)
	one := overviewDatabase{Name: d.Name, At: at, Away: why}
	if why != "" {
		return one
	}
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
	list, at := q.examined(d, st)
	one.Examined = at
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

// count formats a number of a sample, which stops counting at its limit.
func count(n int64) string {
	if n >= relay.SampleLimit {
		return num(int64(relay.SampleLimit)) + "+"
	}
	return num(n)
}

// Events that wait longer than these limits are late, or wrong.
const (
	late  = 5 * time.Second
	wrong = time.Minute
)

func (h *Handler) outboxFigures(d *database, st state) []figure {
	s, now := st.Outbox, st.Now
	oldest := figure{
		Name: "Oldest", Value: "–", Href: h.path("chain"), Plot: d.past(func(p point) float64 { return p.Oldest }),
		Note: fmt.Sprintf("%s, %d/%d lanes", plural(int64(s.Members), "relay"), s.Owned, relay.Lanes),
	}
	if s.Backlog > 0 {
		oldest.Value = dur(s.Oldest)
		switch {
		case s.Oldest > wrong:
			oldest.Severity = bad
		case s.Oldest > late:
			oldest.Severity = look
		}
	}
	list := []figure{
		{
			Name: "Backlog", Value: count(s.Backlog), Unit: unit(s.Backlog, "event"), Href: h.path("chain"),
			Plot: d.past(func(p point) float64 { return p.Backlog }),
		},
		oldest,
		{Name: "In", Value: rate(now.In), Unit: "/s", Plot: d.past(func(p point) float64 { return p.In })},
		{Name: "Out", Value: rate(now.Out), Unit: "/s", Plot: d.past(func(p point) float64 { return p.Out })},
		{
			Name: "Held", Value: count(s.Held), Unit: unit(s.Held, "event"), Note: paused(s.PausedTopics),
			Href:     h.path("topics"),
			Severity: over(s.Held+s.PausedTopics, look), Plot: d.past(func(p point) float64 { return p.Held }),
		},
		{
			Name: "Refused", Value: count(s.Parked), Unit: unit(s.Parked, "event"), Note: keys(s.ParkedKeys),
			Href:     h.path("keys"),
			Severity: over(s.Parked, look), Plot: d.past(func(p point) float64 { return p.Parked }),
		},
	}
	if w := s.WAL; w != nil {
		slot := figure{
			Name: "Slot", Value: size(int(w.LagBytes)), Note: w.State, Plot: d.past(func(p point) float64 {
				return p.SlotBytes
			}),
		}
		switch {
		case !w.Exists:
			slot.Value, slot.Note, slot.Severity = "missing", "relays read the table", look
		case !w.Active:
			slot.Note, slot.Severity = "nobody reads it", look
		case w.State == "lost" || w.State == "unreserved":
			slot.Severity = bad
		}
		list = append(list, slot)
	}
	return list
}

func (h *Handler) inboxFigures(d *database, st state) []figure {
	now := st.Now
	return []figure{
		{
			Name: "Decided", Value: rate(now.Effects), Unit: "/s", Note: plural(int64(len(st.Inbox)), "consumer"),
			Href: h.path("consumers"), Plot: d.past(func(p point) float64 { return p.Effects }),
		},
		{
			Name: "Halted", Value: num(now.Halted), Unit: unit(int64(now.Halted), "partition"),
			Href:     h.path("consumers"),
			Severity: over(int64(now.Halted), bad), Plot: d.past(func(p point) float64 { return p.Halted }),
		},
		{
			Name: "Failed", Value: num(now.InParked), Unit: unit(int64(now.InParked), "event"), Href: h.path("keys"),
			Severity: over(int64(now.InParked), look), Plot: d.past(func(p point) float64 { return p.InParked }),
		},
		{
			Name: "Quarantined", Value: num(now.Quarantined), Unit: unit(int64(now.Quarantined), "event"),
			Href:     h.path("db", d.Name, inInbox, "events") + query("kind", "quarantined"),
			Severity: over(int64(now.Quarantined), look),
			Plot:     d.past(func(p point) float64 { return p.Quarantined }),
		},
	}
}

// over returns a severity if n is not zero.
func over(n int64, severity string) string {
	if n > 0 {
		return severity
	}
	return ""
}

func paused(topics int64) string {
	if topics == 0 {
		return ""
	}
	return plural(topics, "topic") + " paused"
}

func keys(n int64) string {
	if n == 0 {
		return ""
	}
	return plural(n, "key")
}

func plural(n int64, what string) string { return num(n) + " " + unit(n, what) }

// unit returns a noun in the number of n.
func unit(n int64, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// guide says where a finding links to.
type guide struct {
	runbooks, failed, warned string // a page of docs/runbooks, and the alerts that it has sections for
	page, name               string
}

func (g guide) runbook(alert string) string {
	if alert == "" {
		return ""
	}
	return g.runbooks + ".md#effectonce" + strings.ToLower(alert)
}

// guides are by check, or by the first word of a check.
var guides = map[string]guide{
	"leases":                {"relay", "RelayAbsent", "LanesUnowned", "chain", "Chain"},
	"parked":                {"relay", "EventsParked", "EventsParked", "keys", "Blocked keys"},
	"held":                  {"relay", "EventsHeld", "EventsHeld", "topics", "Topics"},
	"paused":                {"relay", "TopicPaused", "TopicPaused", "topics", "Topics"},
	"scheduled":             {"relay", "ScheduledLate", "ScheduledLate", "scheduled", "Scheduled"},
	"kafka":                 {"relay", "RelayOutage", "RelayOutage", "", ""},
	"topic":                 {"relay", "EventsHeld", "", "topics", "Topics"},
	"slot":                  {"relay", "SlotBehind", "SlotUnread", "", ""},
	"inbox days":            {"workers", "InboxDaysShort", "InboxDaysShort", "consumers", "Consumers"},
	"consumer":              {"workers", "PartitionHalted", "InboxParked", "consumers", "Consumers"},
	"progress":              {"workers", "ConsumerStalled", "ConsumerLag", "consumers", "Consumers"},
	"oldest snapshot":       {"relay", "OldSnapshot", "OldSnapshot", "", ""},
	"idempotency keys":      {"idempotency", "", "OperationStuck", "idempotency", "Idempotency keys"},
	"idle in transaction":   {"relay", "OldSnapshot", "OldSnapshot", "", ""},
	"prepared transactions": {"relay", "OldSnapshot", "OldSnapshot", "", ""},
}

func (h *Handler) guided(d *database, f doctor.Finding) finding {
	g, ok := guides[f.Check]
	if !ok {
		first, _, _ := strings.Cut(f.Check, " ")
		g = guides[first]
	}
	to := finding{Finding: f, Runbook: g.runbook(g.warned)}
	if f.Severity == doctor.Fail {
		to.Runbook = g.runbook(g.failed)
	}
	if g.page != "" {
		to.Href, to.Do = h.path(g.page), g.name
	}
	// The page that has the finding's verb.
	topic, _ := strings.CutPrefix(f.Check, "topic ")
	switch {
	case strings.Contains(f.Command, " topics accept "):
		to.Href, to.Do = h.path("topic", d.Name, topic), "Topic"
	case strings.Contains(f.Command, " topics accept-cluster "):
		to.Href, to.Do = h.path("topics"), "Topics"
	case strings.Contains(f.Command, " inbox parked list ") && !strings.HasPrefix(f.Found, "0 events parked,"):
		to.Href, to.Do = h.path("keys"), "Blocked keys"
	case strings.Contains(f.Next, "`relay replay`"):
		to.Href, to.Do = h.path("archive"), "Archive"
	}
	return to
}
