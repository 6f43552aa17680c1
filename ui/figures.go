package ui

import (
	"fmt"
	"time"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// figure is one number of the overview.
type figure struct {
	Name, Value, Unit, Note string
	Severity                string // empty: neutral
	Href                    string
	Plot                    format.Plot
}

// count formats a number of a sample, which stops counting at its limit.
func count(n int64) string {
	if n >= relay.SampleLimit {
		return format.Num(int64(relay.SampleLimit)) + "+"
	}
	return format.Num(n)
}

// Events that wait longer than these limits are late, or wrong.
const (
	late  = 5 * time.Second
	wrong = time.Minute
)

func (h *Handler) outboxFigures(d *reads.Database, st reads.State) []figure {
	s, now := st.Outbox, st.Now
	oldest := figure{
		Name: "Oldest", Value: "–", Href: h.path("chain"),
		Plot: d.Past(func(p reads.Point) float64 { return p.Oldest }),
		Note: fmt.Sprintf("%s, %d/%d lanes", format.Plural(int64(s.Members), "relay"), s.Owned, relay.Lanes),
	}
	if s.Backlog > 0 {
		oldest.Value = format.Dur(s.Oldest)
		switch {
		case s.Oldest > wrong:
			oldest.Severity = bad
		case s.Oldest > late:
			oldest.Severity = look
		}
	}
	list := []figure{
		{
			Name: "Backlog", Value: count(s.Backlog), Unit: format.Unit(s.Backlog, "event"), Href: h.path("chain"),
			Plot: d.Past(func(p reads.Point) float64 { return p.Backlog }),
		},
		oldest,
		{Name: "In", Value: format.Rate(now.In), Unit: "/s", Plot: d.Past(func(p reads.Point) float64 { return p.In })},
		{
			Name: "Out", Value: format.Rate(now.Out), Unit: "/s",
			Plot: d.Past(func(p reads.Point) float64 { return p.Out }),
		},
		{
			Name: "Held", Value: count(s.Held), Unit: format.Unit(s.Held, "event"), Note: paused(s.PausedTopics),
			Href:     h.path("topics"),
			Severity: over(s.Held+s.PausedTopics, look), Plot: d.Past(func(p reads.Point) float64 { return p.Held }),
		},
		{
			Name: "Refused", Value: count(s.Parked), Unit: format.Unit(s.Parked, "event"), Note: keys(s.ParkedKeys),
			Href:     h.path("keys"),
			Severity: over(s.Parked, look), Plot: d.Past(func(p reads.Point) float64 { return p.Parked }),
		},
	}
	if w := s.WAL; w != nil {
		slot := figure{
			Name: "Slot", Value: format.Size(int(w.LagBytes)), Note: w.State, Plot: d.Past(func(p reads.Point) float64 {
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

func (h *Handler) inboxFigures(d *reads.Database, st reads.State) []figure {
	now := st.Now
	return []figure{
		{
			Name: "Decided", Value: format.Rate(now.Effects), Unit: "/s",
			Note: format.Plural(int64(len(st.Inbox)), "consumer"),
			Href: h.path("consumers"), Plot: d.Past(func(p reads.Point) float64 { return p.Effects }),
		},
		{
			Name: "Halted", Value: format.Num(now.Halted), Unit: format.Unit(int64(now.Halted), "partition"),
			Href:     h.path("consumers"),
			Severity: over(int64(now.Halted), bad), Plot: d.Past(func(p reads.Point) float64 { return p.Halted }),
		},
		{
			Name: "Failed", Value: format.Num(now.InParked), Unit: format.Unit(int64(now.InParked), "event"),
			Href:     h.path("keys"),
			Severity: over(int64(now.InParked), look), Plot: d.Past(func(p reads.Point) float64 { return p.InParked }),
		},
		{
			Name: "Quarantined", Value: format.Num(now.Quarantined), Unit: format.Unit(int64(now.Quarantined), "event"),
			Href:     h.path("db", d.Name, reads.InInbox, "events") + format.QueryString("kind", "quarantined"),
			Severity: over(int64(now.Quarantined), look),
			Plot:     d.Past(func(p reads.Point) float64 { return p.Quarantined }),
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
	return format.Plural(topics, "topic") + " paused"
}

func keys(n int64) string {
	if n == 0 {
		return ""
	}
	return format.Plural(n, "key")
}

func (h *Handler) keyFigures(c keysoperator.Counts) []figure {
	return []figure{
		{
			Name: "Stuck", Value: count(c.Stuck), Unit: format.Unit(c.Stuck, "operation"), Href: h.path("idempotency"),
			Note: "of idempotency keys", Severity: over(c.Stuck, look),
		},
		{
			Name: "Unknown", Value: count(c.Unknown), Unit: format.Unit(c.Unknown, "operation"),
			Href: h.path("idempotency"),
			Note: "recovery has them",
		},
	}
}
