package format

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	var got []string
	for _, l := range Diff(`{"a":1,"b":2,"c":3,"d":4,"e":5}`, `{"a":1,"b":2,"c":3,"d":5,"e":5}`) {
		got = append(got, l.Sign+strings.TrimSpace(l.Text))
	}
	want := []string{"…", ` "a": 1,`, ` "b": 2,`, ` "c": 3,`, `-"d": 4,`, `+"d": 5,`, ` "e": 5`, " }"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	// Two that are equal but for their spaces differ as they are.
	if lines := Diff(`{"a":1}`, `{"a": 1}`); len(lines) != 2 {
		t.Errorf("%v", lines)
	}
	long := strings.Repeat("x\n", mostLines+1)
	if lines := Diff(long, strings.Repeat("y\n", mostLines+1)); len(lines) < 2*mostLines {
		t.Errorf("%d lines", len(lines))
	}
}

func TestPlot(t *testing.T) {
	t.Parallel()
	now := time.Now()
	values := []float64{2, -1, 10, 4}
	p := NewPlot("Throughput", "/s", now.Add(-20*time.Minute), now, Hour)
	p.Add("in", len(values), func(i int) (time.Time, float64) {
		return now.Add(time.Duration(i-len(values)+1) * time.Second), values[i]
	})
	p.Add("decided", 1, func(int) (time.Time, float64) { return now, -1 })
	if len(p.Lines) != 1 || p.From != now.Add(-20*time.Minute) {
		t.Fatalf("%d lines from %v", len(p.Lines), p.From)
	}
	if got := p.Points(p.Lines[0]); got != "597.5,3.0" {
		t.Error("the highest of a slot is drawn:", got)
	}
	if s := p.Slots(); len(s) != 1 || s[0].X != 595 || s[0].Says != "0 ms ago: in 10/s" {
		t.Errorf("%+v", s)
	}
}
