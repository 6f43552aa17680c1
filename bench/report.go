package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/effectonce/effectonce/bench/page"
)

// figure is a measurement. CPU is in microseconds per event; claim, publish and settle are seconds, summed over pumps.
type figure struct {
	Case        string  `json:"case"`
	Name        string  `json:"name"`
	Turn        int     `json:"turn"` // 0 is the warm-up, which no median counts
	Events      int     `json:"events"`
	Seconds     float64 `json:"seconds"`
	Rate        float64 `json:"rate"` // events a second
	PeakKiB     int64   `json:"peak_kib,omitempty"`
	CPU         float64 `json:"cpu_us,omitempty"`
	PostgresCPU float64 `json:"postgres_cpu_us,omitempty"`
	KafkaCPU    float64 `json:"kafka_cpu_us,omitempty"`
	WALBytes    float64 `json:"wal_bytes,omitempty"`
	WireBytes   float64 `json:"wire_bytes,omitempty"`
	Claims      int     `json:"claims,omitempty"`
	Claim       float64 `json:"claim_s,omitempty"`
	Publish     float64 `json:"publish_s,omitempty"`
	Settle      float64 `json:"settle_s,omitempty"`
	P50         float64 `json:"p50_ms,omitempty"` // latency, milliseconds
	P99         float64 `json:"p99_ms,omitempty"`
}

// goal compares the median of a ratio, rate or time with a promised value.
type goal struct {
	Case   string  `json:"case"`
	What   string  `json:"goal"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Want   float64 `json:"want"`
	AtMost bool    `json:"at_most,omitempty"` // smaller is better
	Met    bool    `json:"met"`
}

// report collects figures and prints them for people and, as JSON lines, for machines.
type report struct {
	out     io.Writer
	file    *os.File // nil: no JSON
	figures []figure
	goals   []goal
	notes   map[string]string
}

func newReport(out io.Writer, path string) (*report, error) {
	r := &report{out: out, notes: map[string]string{}}
	if path == "" {
		return r, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	r.file = f
	return r, err
}

func (r *report) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

func (r *report) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format+"\n", args...) }

func (r *report) line(v any) {
	if r.file != nil {
		_ = json.NewEncoder(r.file).Encode(v)
	}
}

// about prints the environment of the run.
func (r *report) about(a map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(a)) {
		r.printf("%s: %s", k, a[k])
	}
	r.line(map[string]any{"about": a})
}

func (r *report) note(name, text string) {
	r.notes[name] = text
	r.line(map[string]string{"case": name, "note": text})
}

// add adds a figure and prints it at once, because a run takes minutes.
func (r *report) add(f figure) {
	r.figures = append(r.figures, f)
	r.line(f)
	r.printf("  %s %d: %s %.0f/s", f.Case, f.Turn, f.Name, f.Rate)
}

// rates returns the rates of a name by turn, without the warm-up.
func (r *report) rates(of, name string) map[int]float64 {
	m := map[int]float64{}
	for _, f := range r.figures {
		if f.Case == of && f.Name == name && f.Turn > 0 {
			m[f.Turn] = f.Rate
		}
	}
	return m
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

// ratio adds a goal for the rate of a divided by that of b, turn by turn.
func (r *report) ratio(of, a, b string, want float64) {
	r.goal(of, a+" / "+b, want, r.ratios(of, a, b))
}

// ratios returns the rate of a divided by that of b for each turn.
func (r *report) ratios(of, a, b string) (all []float64) {
	rates := r.rates(of, b)
	for turn, rate := range r.rates(of, a) {
		if rates[turn] > 0 { // small numbers may be over before anything is measured
			all = append(all, rate/rates[turn])
		}
	}
	return all
}

// atLeast adds a goal for a rate.
func (r *report) atLeast(of, name string, want float64) {
	r.goal(of, name+", events/s", want, slices.Collect(maps.Values(r.rates(of, name))))
}

// atMost adds a goal for values that must stay below want.
func (r *report) atMost(of, what string, want float64, all []float64) {
	r.judge(goal{Case: of, What: what, Want: want, AtMost: true}, all)
}

func (r *report) goal(of, what string, want float64, all []float64) {
	r.judge(goal{Case: of, What: what, Want: want}, all)
}

func (r *report) judge(g goal, all []float64) {
	g.Median, g.Min, g.Max = page.Spread(all)
	switch {
	case len(all) == 0: // nothing was measured
	case g.AtMost:
		g.Met = g.Median <= g.Want
	default:
		g.Met = g.Median >= g.Want
	}
	r.goals = append(r.goals, g)
	r.line(g)
}

// table prints a case: its figures, then its goals.
func (r *report) table(name string) {
	r.printf("\n%s: %s", name, r.notes[name])
	w := tabwriter.NewWriter(r.out, 0, 8, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	row("\tevents/s\tmin\tmax\tpeak MiB\tµs CPU/event: own\tPostgres\tKafka\tWAL B/event\tp50 ms\tp99 ms\tclaim : " +
		"publish : settle")
	for _, n := range r.names(name) {
		pick := func(get func(figure) float64) []float64 { return r.pick(name, n, get) }
		mid := func(get func(figure) float64) float64 { m, _, _ := page.Spread(pick(get)); return m }
		rate, low, high := page.Spread(pick(func(f figure) float64 { return f.Rate }))
		phases := ""
		if claim := mid(func(f figure) float64 { return f.Claim }); claim > 0 {
			phases = fmt.Sprintf("%.2f : %.2f : %.2f s", claim, mid(func(f figure) float64 { return f.Publish }),
				mid(func(f figure) float64 { return f.Settle }))
		}
		row("%s\t%.0f\t%.0f\t%.0f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", n, rate, low, high,
			some(mid(func(f figure) float64 { return float64(f.PeakKiB) / 1024 })),
			some(mid(func(f figure) float64 { return f.CPU })),
			some(mid(func(f figure) float64 { return f.PostgresCPU })),
			some(mid(func(f figure) float64 { return f.KafkaCPU })),
			some(mid(func(f figure) float64 { return f.WALBytes })), some(mid(func(f figure) float64 { return f.P50 })),
			some(mid(func(f figure) float64 { return f.P99 })), phases)
	}
	_ = w.Flush()
	w = tabwriter.NewWriter(r.out, 0, 8, 2, ' ', 0)
	for _, g := range r.goals {
		if g.Case == name {
			met := "met"
			if !g.Met {
				met = "NOT MET"
			}
			sign := ">="
			if g.AtMost {
				sign = "<="
			}
			row("%s\t%.2f (%.2f to %.2f)\tgoal %s %v\t%s", g.What, g.Median, g.Min, g.Max, sign, g.Want, met)
		}
	}
	_ = w.Flush()
	r.printf("load of the machine at the end: %s\n", load())
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

func some(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", v)
}
