package ui

import (
	"time"

	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// figure is one number of the overview.
type figure struct {
	Name, Value, Unit string
	Severity          string // empty: neutral
}

// count formats a number of a sample, which stops counting at its limit.
func count(n int64) string {
	if n >= relay.SampleLimit {
		return format.Num(int64(relay.SampleLimit)) + "+"
	}
	return format.Num(n)
}

// Something that waits and does not move for these times stands, or is wrong: progress is stored every ten seconds.
const (
	stands = 15 * time.Second
	wrong  = time.Minute
)

// standing returns the severity of something that has waited. The doctor's findings tell what is wrong from what is
// slow.
func standing(waits time.Duration) string {
	if waits > stands {
		return look
	}
	return ""
}

// over returns a severity if n is not zero.
func over(n int64, severity string) string {
	if n > 0 {
		return severity
	}
	return ""
}

// columns are the figures of the table of many databases, in its order.
var columns = []string{
	"Backlog", "Oldest", "In", "Out", "Held", "Refused", "Waiting", "Decided", "Halted", "Failed", "Quarantined",
	"Slot",
}

// figuresOf returns the figures of a database by name. It lacks those of a side that the database has not.
func figuresOf(st reads.State, m reads.Movement) map[string]figure {
	list := map[string]figure{}
	add := func(name, value, unit, severity string) { list[name] = figure{name, value, unit, severity} }
	rate := func(name string, k reads.Kind) { add(name, format.Rate(m.Now.Of[k]), "/s", "") }
	things := func(name string, n int64, what, severity string) {
		add(name, count(n), format.Unit(n, what), over(n, severity))
	}
	if s := st.Outbox; s != nil {
		things("Backlog", s.Backlog, "event", "")
		oldest := "–"
		if s.Backlog > 0 {
			oldest = format.Dur(s.Oldest)
		}
		add("Oldest", oldest, "", standing(s.Oldest))
		rate("In", reads.In)
		rate("Out", reads.Out)
		things("Held", s.Held, "event", look)
		things("Refused", s.Parked, "event", look)
		if w := s.WAL; w != nil {
			slot := format.Size(int(w.LagBytes))
			switch {
			case !w.Exists:
				add("Slot", "missing", "", look)
			case !w.Active:
				add("Slot", slot, "unread", look)
			default:
				add("Slot", slot, w.State, over(lostWAL[w.State], bad))
			}
		}
	}
	if st.HasInbox {
		var halted, failed, quarantined int64
		for _, c := range st.Inbox {
			failed, quarantined = failed+c.Parked, quarantined+c.Quarantined
			for _, p := range c.Partitions {
				if p.HaltedAt != nil {
					halted++
				}
			}
		}
		waiting := "–"
		if n := m.Now.Of[reads.Waiting]; n >= 0 {
			waiting = format.Num(n)
		}
		add("Waiting", waiting, "records", "")
		rate("Decided", reads.Decided)
		things("Halted", halted, "partition", bad)
		things("Failed", failed, "event", look)
		things("Quarantined", quarantined, "event", look)
	}
	return list
}

// lostWAL are the states of a slot whose WAL Postgres has removed, or may remove.
var lostWAL = map[string]int64{"lost": 1, "unreserved": 1}

// plots draw the past of a database.
func plots(d *reads.Database, window time.Duration) (list []format.Plot) {
	past := d.Past(window)
	if len(past) < 2 {
		return nil
	}
	for _, one := range []struct {
		title, unit string
		kinds       map[reads.Kind]string
	}{
		{"Throughput", "/s", map[reads.Kind]string{reads.In: "in", reads.Out: "out", reads.Decided: "decided"}},
		{"Waiting", "", map[reads.Kind]string{reads.Backlog: "in the outbox", reads.Waiting: "for consumers"}},
		{"Failures", "", map[reads.Kind]string{reads.Aside: "held, refused, failed or quarantined"}},
	} {
		p := format.NewPlot(one.title, one.unit, past[0].At, past[len(past)-1].At, window)
		for k := range reads.Kind(len(reads.Point{}.Of)) {
			if name, ok := one.kinds[k]; ok {
				p.Add(name, len(past), func(i int) (time.Time, float64) { return past[i].At, past[i].Of[k] })
			}
		}
		if len(p.Lines) > 0 {
			list = append(list, p)
		}
	}
	return list
}
