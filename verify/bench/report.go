package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// figure is a measurement. CPU is in microseconds per event, bytes are per event, latencies are milliseconds.
type figure struct {
	Case, Name                 string
	Turn                       int // 0 is the warm-up, which no median counts
	Events                     int
	Seconds, Rate              float64 // events a second
	P50, P99                   float64
	CPU, PostgresCPU, KafkaCPU float64
	WALBytes, Allocations      float64
	PeakKiB                    int64
}

type column struct {
	title string
	get   func(figure) float64
}

// columns of a case's table; one is left out where no alternative has a value for it.
var columns = []column{
	{"p50, ms", func(f figure) float64 { return f.P50 }},
	{"p99, ms", func(f figure) float64 { return f.P99 }},
	{"own CPU per event, µs", func(f figure) float64 { return f.CPU }},
	{"Postgres' CPU", func(f figure) float64 { return f.PostgresCPU }},
	{"Kafka's CPU", func(f figure) float64 { return f.KafkaCPU }},
	{"WAL per event, bytes", func(f figure) float64 { return f.WALBytes }},
	{"peak, MiB", func(f figure) float64 { return float64(f.PeakKiB) / 1024 }},
}

// goal compares the median of a ratio, rate or time with a promised value.
type goal struct {
	Case, What             string
	Median, Min, Max, Want float64
	AtMost                 bool // smaller is better
	Met                    bool
}

// report collects figures, tells each at once, and prints the tables of a case in Markdown.
type report struct {
	out, told io.Writer
	figures   []figure
	goals     []goal
	notes     map[string]string
	env       map[string]string
}

func newReport(out, told io.Writer) *report {
	return &report{out: out, told: told, notes: map[string]string{}}
}

func (r *report) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }

func (r *report) tell(format string, args ...any) { _, _ = fmt.Fprintf(r.told, format+"\n", args...) }

// about tells the environment of the run.
func (r *report) about(a map[string]string) {
	r.env = a
	for _, k := range slices.Sorted(maps.Keys(a)) {
		r.tell("%s: %s", k, a[k])
	}
}

func (r *report) note(name, text string) { r.notes[name] = text }

// add adds a figure and tells it at once, because a run takes minutes.
func (r *report) add(f figure) {
	r.figures = append(r.figures, f)
	r.tell("  %s %d: %s %.0f/s", f.Case, f.Turn, f.Name, f.Rate)
}

// pick returns a value of each of a name's figures, without the warm-up.
func (r *report) pick(of, name string, get func(figure) float64) (out []float64) {
	for _, f := range r.figures {
		if f.Case == of && f.Name == name && f.Turn > 0 {
			out = append(out, get(f))
		}
	}
	return out
}

func (r *report) rates(of, name string) []float64 {
	return r.pick(of, name, func(f figure) float64 { return f.Rate })
}

// ratios returns the rate of a divided by that of b for each turn.
func (r *report) ratios(of, a, b string) (all []float64) {
	rates := r.rates(of, b)
	for i, rate := range r.rates(of, a) {
		if i < len(rates) && rates[i] > 0 { // small numbers may be over before anything is measured
			all = append(all, rate/rates[i])
		}
	}
	return all
}

// ratio adds a goal for the rate of a divided by that of b, turn by turn.
func (r *report) ratio(of, a, b string, want float64) {
	r.judge(goal{Case: of, What: a + " / " + b, Want: want}, r.ratios(of, a, b))
}

// atLeast adds a goal for a rate.
func (r *report) atLeast(of, name string, want float64) {
	r.judge(goal{Case: of, What: name + ", events/s", Want: want}, r.rates(of, name))
}

// atMost adds a goal for values that must stay below want.
func (r *report) atMost(of, what string, want float64, all []float64) {
	r.judge(goal{Case: of, What: what, Want: want, AtMost: true}, all)
}

func (r *report) judge(g goal, all []float64) {
	g.Median, g.Min, g.Max = spread(all)
	switch {
	case len(all) == 0: // nothing was measured
	case g.AtMost:
		g.Met = g.Median <= g.Want
	default:
		g.Met = g.Median >= g.Want
	}
	r.goals = append(r.goals, g)
}

func (r *report) goalTable(name string) {
	text := ""
	for _, g := range r.goals {
		if g.Case != name {
			continue
		}
		sign, met := "at least", "met"
		if g.AtMost {
			sign = "at most"
		}
		if !g.Met {
			met = "**not met**"
		}
		text += fmt.Sprintf("| %s | **%s** (%s to %s) | %s %s | %s |\n", g.What, number(g.Median), number(g.Min),
			number(g.Max), sign, number(g.Want), met)
	}
	if text != "" {
		r.printf("| what | median (min to max) | goal | |\n|---|---|---|---|\n%s\n", text)
	}
}

// table prints a case: its goals, then its figures.
func (r *report) table(name, load string) {
	turns := 0
	var own []figure
	for _, f := range r.figures {
		if f.Case == name && f.Turn > 0 {
			own, turns = append(own, f), max(turns, f.Turn)
		}
	}
	r.printf("### %s\n\n%s.\n\n%s, %s cores, load average %s at the start, turns: %d.\n\n", name, r.notes[name],
		r.env["date"], r.env["cores"], load, turns)
	r.goalTable(name)
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool {
		return !slices.ContainsFunc(own, func(f figure) bool { return c.get(f) != 0 })
	})
	head := "| | events/s, median (min to max) |"
	for _, c := range shown {
		head += " " + c.title + " |"
	}
	r.printf("%s\n|---|---|%s\n", head, strings.Repeat("---|", len(shown)))
	for _, n := range r.names(name) {
		mid, low, high := spread(r.rates(name, n))
		r.printf("| %s | %s (%s to %s) |", n, number(mid), number(low), number(high))
		for _, c := range shown {
			value := "-" // nobody measured it
			if v, _, _ := spread(r.pick(name, n, c.get)); v != 0 {
				value = number(v)
			}
			r.printf(" %s |", value)
		}
		r.printf("\n")
	}
	r.printf("\n")
}

// names returns the names of a case in the order of their first figure.
func (r *report) names(of string) (out []string) {
	for _, f := range r.figures {
		if f.Case == of && !slices.Contains(out, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}

// spread returns median, min and max, or zeros without values.
func spread(all []float64) (median, low, high float64) {
	if len(all) == 0 {
		return 0, 0, 0
	}
	s := slices.Sorted(slices.Values(all))
	median = s[len(s)/2]
	if len(s)%2 == 0 {
		median = (s[len(s)/2-1] + median) / 2
	}
	return median, s[0], s[len(s)-1]
}

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
