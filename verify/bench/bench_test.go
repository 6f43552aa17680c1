package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in                []float64
		median, low, high float64
	}{
		{nil, 0, 0, 0},
		{[]float64{3}, 3, 3, 3},
		{[]float64{9, 1, 5}, 5, 1, 9},
		{[]float64{4, 1, 2, 9}, 3, 1, 9},
	} {
		if m, l, h := spread(c.in); m != c.median || l != c.low || h != c.high {
			t.Errorf("spread(%v) = %v, %v, %v", c.in, m, l, h)
		}
	}
}

// TestRatio: ratios are calculated within a turn, without the warm-up.
func TestRatio(t *testing.T) {
	t.Parallel()
	r := newReport(io.Discard, io.Discard)
	for turn, rates := range [][2]float64{{1, 100}, {20, 10}, {90, 30}, {80, 20}} {
		r.add(figure{Case: "c", Name: "a", Turn: turn, Rate: rates[0]})
		r.add(figure{Case: "c", Name: "b", Turn: turn, Rate: rates[1]})
	}
	r.ratio("c", "a", "b", 3.5)
	if g := r.goals[0]; g.Median != 3 || g.Min != 2 || g.Max != 4 || g.Met {
		t.Errorf("got %+v, want median 3 of 2 to 4, not met", g)
	}
}

// TestJudgeCosts: a cost above its bound is an error, and so is one that is missing on either side.
func TestJudgeCosts(t *testing.T) {
	t.Parallel()
	then := map[string]cost{"a": {CPU: 10, Allocations: 100}}
	for want, now := range map[string]map[string]cost{
		"":                       {"a": {CPU: 13.4, Allocations: 104}},
		"1.40 times the CPU":     {"a": {CPU: 14, Allocations: 100}},
		"1.10 times the alloc":   {"a": {CPU: 1, Allocations: 110}},
		"a is in the baseline":   {},
		"b is not in the baseli": {"a": {CPU: 1, Allocations: 1}, "b": {CPU: 1, Allocations: 1}},
	} {
		err := judgeCosts(newReport(io.Discard, io.Discard), then, now)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", now, err, want)
		}
	}
}

// TestTable: a table has the medians without the warm-up, and the columns that somebody has a value for.
func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newReport(&out, io.Discard)
	r.about(map[string]string{"date": "today", "cores": "2"})
	r.note("c", "settings")
	for turn, rate := range []float64{1, 100_000, 120_000} {
		r.add(figure{Case: "c", Name: "a", Turn: turn, Rate: rate, CPU: rate / 1e5, PeakKiB: 2048})
		r.add(figure{Case: "c", Name: "b", Turn: turn, Rate: 1500})
	}
	r.add(figure{Case: "other", Name: "stranger", Turn: 1, Rate: 1, WALBytes: 9})
	r.ratio("c", "a", "b", 60)
	r.atMost("c", "p50, ms", 20, []float64{20, 30})
	r.table("c", "0.1")
	want := `### c

settings.

today, 2 cores, load average 0.1 at the start, turns: 2.

| what | median (min to max) | goal | |
|---|---|---|---|
| a / b | **73.3** (66.7 to 80) | at least 60 | met |
| p50, ms | **25** (20 to 30) | at most 20 | **not met** |

| | events/s, median (min to max) | own CPU per event, µs | peak, MiB |
|---|---|---|---|
| a | 110,000 (100,000 to 120,000) | 1.1 | 2 |
| b | 1,500 (1,500 to 1,500) | - | - |

`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.8764: "0.876", 1.5: "1.5", 2: "2", 3.14159: "3.14", 20.04: "20", 999.94: "999.9", 1234: "1,234",
		114285.7: "114,300", 1e6: "1,000,000", -2500: "-2,500",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is printed as %s, want %s", v, got, want)
		}
	}
}

func TestPayloads(t *testing.T) {
	t.Parallel()
	a, b := payloads(100), payloads(100)
	for i := range a {
		if len(a[i]) != payloadSize || !bytes.Equal(a[i], b[i]) || bytes.ContainsRune(a[i], '\n') {
			t.Fatalf("payload %d has %d bytes, differs between processes, or breaks the line: %s", i, len(a[i]), a[i])
		}
	}
}

// TestGoals: a goal without a measurement is not met.
func TestGoals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		all    []float64
		atMost bool
		want   bool
	}{
		{nil, false, false},
		{nil, true, false},
		{[]float64{1}, false, false},
		{[]float64{1}, true, true},
		{[]float64{3}, false, true},
		{[]float64{3}, true, false},
		{[]float64{2}, false, true},
		{[]float64{2}, true, true},
	} {
		r := newReport(io.Discard, io.Discard)
		r.judge(goal{Want: 2, AtMost: c.atMost}, c.all)
		if r.goals[0].Met != c.want {
			t.Errorf("%v, at most: %v: met is %v", c.all, c.atMost, r.goals[0].Met)
		}
	}
}

// TestFlags: -only accepts every case and several, and -quick lowers only numbers that no flag sets.
func TestFlags(t *testing.T) {
	t.Parallel()
	for _, c := range cases() {
		if o, err := parse([]string{"-only", c.name}); err != nil || len(o.chosen()) != 1 {
			t.Errorf("-only %s: %d cases, %v", c.name, len(o.chosen()), err)
		}
	}
	for _, bad := range []string{"relais", "relay,relay", "relay,", "relay;inbox"} {
		if _, err := parse([]string{"-only", bad}); err == nil {
			t.Errorf("-only %s is taken", bad)
		}
	}
	o, err := parse([]string{"-quick", "-events", "77"})
	if err != nil || o.events != 77 || o.repeats != 1 {
		t.Errorf("-quick -events 77: %d events, %d repeats, %v", o.events, o.repeats, err)
	}
	if all, err := parse([]string{"-all"}); err != nil || len(all.chosen()) != len(cases()) {
		t.Errorf("-all: %d of %d cases, %v", len(all.chosen()), len(cases()), err)
	}
}
