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
	at := time.Now()
	var p Plot
	p.Add(at.Add(-time.Hour), 0)
	p.Add(at.Add(-time.Minute), -1) // not known: not drawn
	p.Add(at, 10)
	if got := p.Line(); got != "0.0,26.0 120.0,2.0" {
		t.Error(got)
	}
	if got := p.Area(); got != "0.0,28 0.0,26.0 120.0,2.0 120,28" {
		t.Error(got)
	}
}
