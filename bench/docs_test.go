package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/bench/page"
	"github.com/effectonce/effectonce/bench/plan"
)

// TestScalingIsWritten: the tables of docs/scaling.md are generated from costs.json.
func TestScalingIsWritten(t *testing.T) {
	t.Parallel()
	const doc = "../docs/scaling.md"
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	costs, err := plan.Read(costsFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, table := range plan.Sections(costs, plan.DefaultAssumptions()) {
		again, err := page.Replace(string(text), name, table)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
		} else if again != string(text) {
			t.Errorf("%s: the table %q is not that of %s: go run . -model -docs ../docs", doc, name, costsFile)
		}
	}
}

// TestReportedFiguresReachPage: the page uses the names of the JSON lines.
func TestReportedFiguresReachPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "figures.jsonl")
	rep, err := newReport(&bytes.Buffer{}, file)
	if err != nil {
		t.Fatal(err)
	}
	rep.about(map[string]string{"date": "today", "cores": "2", "load": "0"})
	rep.note("relay", "how it was set")
	for turn := range 2 {
		rep.add(figure{
			Case: "relay", Name: nameRelay, Turn: turn, Events: 10, Seconds: 1, Rate: 110_000, CPU: 3.5,
			PostgresCPU: 8.5, KafkaCPU: 2.5, WALBytes: 113, PeakKiB: 10 * 1024, P50: 12, P99: 34,
		})
		rep.add(figure{Case: "relay", Name: nameProducer, Turn: turn, Rate: 100_000})
	}
	rep.ratio("relay", nameRelay, nameProducer, 1.5)
	rep.close()
	if err := os.WriteFile(filepath.Join(dir, "benchmarks.md"),
		[]byte("a\n<!-- figures -->\n<!-- end of figures -->\nz\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (options{figures: file, docs: dir}).write(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| relay | relay drain / ProducerPerformance | **1.1** (1.1 to 1.1) | at least 1.5 | **not met** |",
		"how it was set.",
		"| | events/s, median (min to max) | p50, ms | p99, ms | own CPU per event, µs | Postgres' CPU | Kafka's CPU " +
			"| WAL per event, bytes | peak, MiB |",
		"| relay drain | 110,000 (110,000 to 110,000) | 12 | 34 | 3.5 | 8.5 | 2.5 | 113 | 10 |",
	} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("no %q in\n%s", want, doc)
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "benchmarks.svg"))
	if err != nil || !bytes.Contains(svg, []byte(nameRelay+": 110,000")) {
		t.Errorf("the chart does not show the relay: %v\n%s", err, svg)
	}
}
