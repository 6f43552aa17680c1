package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/effectonce/effectonce/bench/page"
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
		if m, l, h := page.Spread(c.in); m != c.median || l != c.low || h != c.high {
			t.Errorf("spread(%v) = %v, %v, %v", c.in, m, l, h)
		}
	}
}

// TestRatio: ratios are calculated within a turn, without the warm-up.
func TestRatio(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r, err := newReport(&out, "")
	if err != nil {
		t.Fatal(err)
	}
	for turn, rates := range [][2]float64{{1, 100}, {20, 10}, {90, 30}, {80, 20}} {
		r.add(figure{Case: "c", Name: "a", Turn: turn, Rate: rates[0]})
		r.add(figure{Case: "c", Name: "b", Turn: turn, Rate: rates[1]})
	}
	r.ratio("c", "a", "b", 3.5)
	if g := r.goals[0]; g.Median != 3 || g.Min != 2 || g.Max != 4 || g.Met {
		t.Errorf("got %+v, want median 3 of 2 to 4, not met", g)
	}
	r.table("c")
	if !bytes.Contains(out.Bytes(), []byte("NOT MET")) {
		t.Errorf("the table does not say that the goal was missed:\n%s", out.Bytes())
	}
}

func TestProducerLine(t *testing.T) {
	t.Parallel()
	out := []byte("210000 records sent, 42000.0 records/sec (20.5 MB/sec), 700.0 ms avg latency, 900.0 ms max " +
		"latency.\n" +
		"300000 records sent, 114285.714286 records/sec (55.80 MB/sec), 12.30 ms avg latency, 99.00 ms max latency, " +
		"5 ms 50th.\n")
	all := producerLine.FindAllSubmatch(out, -1)
	if last := all[len(all)-1]; string(last[1]) != "300000" || string(last[2]) != "114285.714286" {
		t.Errorf("the last line was read as %s and %s", last[1], last[2])
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
		r := report{out: io.Discard}
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
