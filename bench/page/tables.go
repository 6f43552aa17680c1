package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// columns of a case's table that have a title; one is left out when no alternative has a value for it.
var columns = []struct {
	key, title string
	scale      float64
}{
	{"p50_ms", "p50, ms", 1},
	{"p99_ms", "p99, ms", 1},
	{"cpu_us", "own CPU per event, µs", 1},
	{"postgres_cpu_us", "Postgres' CPU", 1},
	{"kafka_cpu_us", "Kafka's CPU", 1},
	{"wal_bytes", "WAL per event, bytes", 1},
	{"wire_bytes", "sent per event, bytes", 1},
	{"peak_kib", "peak, MiB", 1.0 / 1024},
}

// hidden values are in the JSON lines only.
var hidden = []string{"turn", "rate", "events", "seconds", "claims", "claim_s", "publish_s", "settle_s"}

// Tables are the tables of a run, in Markdown: all goals in one, then one of figures for each case.
func Tables(l Lines) string {
	var b strings.Builder
	b.WriteString(goals(l))
	for i := range l.Cases {
		b.WriteString(figures(&l.Cases[i]))
	}
	return b.String()
}

func goals(l Lines) string {
	var b strings.Builder
	b.WriteString("### Goals\n\n| case | what | median (min to max) | goal | |\n|---|---|---|---|---|\n")
	for _, c := range l.Cases {
		for _, g := range c.Goals {
			sign, met := "at least", "met"
			if g.AtMost {
				sign = "at most"
			}
			if !g.Met {
				met = "**not met**"
			}
			fmt.Fprintf(&b, "| %s | %s | **%s** (%s to %s) | %s %s | %s |\n", c.Name, cell(g.What), number(g.Median),
				number(g.Min), number(g.Max), sign, number(g.Want), met)
		}
	}
	return b.String()
}

func figures(c *Case) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", c.Name)
	if c.Note != "" {
		fmt.Fprintf(&b, "%s.\n\n", strings.TrimSuffix(c.Note, "."))
	}
	if about := c.About; about["date"] != "" {
		fmt.Fprintf(&b, "%s, %s cores, load average %s at the start, turns: %d.\n\n", about["date"], about["cores"],
			about["load"], turns(c))
	}
	if len(c.Figures) == 0 {
		return b.String()
	}
	type column struct {
		title string
		get   func(Figure) float64
	}
	var shown []column
	known := slices.Clone(hidden)
	add := func(key, title string, scale float64) {
		get := func(f Figure) float64 { return f.Values[key] * scale }
		if slices.ContainsFunc(c.Figures, func(f Figure) bool { return f.Turn > 0 && get(f) != 0 }) {
			shown = append(shown, column{title, get})
		}
	}
	for _, k := range columns {
		known = append(known, k.key)
		add(k.key, k.title, k.scale)
	}
	for _, key := range others(c, known) {
		add(key, strings.ReplaceAll(key, "_", " "), 1)
	}
	b.WriteString("| | events/s, median (min to max) |")
	for _, s := range shown {
		fmt.Fprintf(&b, " %s |", s.title)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(shown)) + "\n")
	for _, name := range c.Names() {
		mid, low, high := Spread(c.counted(name, func(f Figure) float64 { return f.Rate }))
		if len(c.counted(name, func(f Figure) float64 { return f.Rate })) == 0 {
			continue // nothing but a warm-up
		}
		rate := "-"
		if mid != 0 {
			rate = fmt.Sprintf("%s (%s to %s)", number(mid), number(low), number(high))
		}
		fmt.Fprintf(&b, "| %s | %s |", cell(name), rate)
		for _, s := range shown {
			v, _, _ := Spread(c.counted(name, s.get))
			value := "-" // nobody measured it
			if v != 0 {
				value = number(v)
			}
			fmt.Fprintf(&b, " %s |", value)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// others returns the names of values without a column.
func others(c *Case, known []string) (out []string) {
	for _, f := range c.Figures {
		for key := range f.Values {
			if !slices.Contains(known, key) && !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	slices.Sort(out)
	return out
}

func turns(c *Case) (n int) {
	for _, f := range c.Figures {
		n = max(n, f.Turn)
	}
	return n
}

// cell escapes a text for a table cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// number prints a readable figure, with commas between thousands.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a < 1:
		return fmt.Sprintf("%.3g", v)
	case a < 10:
		return strings.TrimSuffix(strings.TrimSuffix(fmt.Sprintf("%.2f", v), "0"), ".0")
	case a < 1000:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	unit := math.Pow(10, math.Max(0, math.Floor(math.Log10(math.Abs(v)))-3)) // four digits
	s := fmt.Sprintf("%.0f", math.Round(v/unit)*unit)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
