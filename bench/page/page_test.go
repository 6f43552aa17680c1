package page

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lines = `{"about":{"cores":"1","date":"yesterday","load":"0"}}
{"case":"relay","name":"old","turn":1,"rate":7}
{"about":{"cores":"2","date":"today","load":"0.1"}}
{"case":"relay","note":"settings"}
{"case":"relay","name":"a|b & c","turn":0,"events":5,"rate":1}
{"case":"relay","name":"a|b & c","turn":1,"events":5,"rate":100000,"cpu_us":3.5,"peak_kib":2048,"new_thing":42}
{"case":"relay","name":"a|b & c","turn":2,"events":5,"rate":120000,"cpu_us":4.5,"peak_kib":2048}
{"case":"relay","name":"slow","turn":1,"events":5,"rate":1500}
{"case":"relay","name":"only warm","turn":0,"events":5,"rate":9}
{"case":"relay","goal":"a / slow","median":73.3,"min":66.7,"max":80,"want":60,"met":true}
{"case":"latency","goal":"p50, ms","median":25,"min":20,"max":30,"want":20,"at_most":true,"met":false}
{"case":"peers","name":"slow","turn":1,"rate":3}
{"case":"peers","name":"slower","turn":1,"rate":1100}
`

func TestTables(t *testing.T) {
	t.Parallel()
	l, err := Read(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	got := Tables(l)
	for _, want := range []string{
		"| relay | a / slow | **73.3** (66.7 to 80) | at least 60 | met |\n",
		"| latency | p50, ms | **25** (20 to 30) | at most 20 | **not met** |\n",
		"### relay\n\nsettings.\n\ntoday, 2 cores, load average 0.1 at the start, turns: 2.\n\n",
		"| | events/s, median (min to max) | own CPU per event, µs | peak, MiB | new thing |\n",
		`| a\|b & c | 110,000 (100,000 to 120,000) | 4 | 2 | 21 |` + "\n",
		"| slow | 1,500 (1,500 to 1,500) | - | - | - |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, stray := range []string{"old", "only warm"} {
		if strings.Contains(got, stray) {
			t.Errorf("%q is shown:\n%s", stray, got)
		}
	}
	for name, bad := range map[string]string{
		"nothing": "", "an about alone": `{"about":{}}`, "nonsense": "{",
		"a stranger": `{"x":1}`,
	} {
		if _, err := Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	l, err := Read(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	svg, err := Chart([]*Case{&l.Cases[0], &l.Cases[2]}, "Rates < of today", "slow")
	if err != nil {
		t.Fatal(err)
	}
	dec := xml.NewDecoder(strings.NewReader(string(svg)))
	for err == nil {
		_, err = dec.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("no XML: %v\n%s", err, svg)
	}
	for _, want := range []string{
		`role="img"`, "<title id=\"title\">Rates &lt; of today</title>", "a|b &amp; c: 110,000 (100,000 to 120,000); " +
			"slow: 1,500 (1,500 to 1,500); slower: 1,100 (1,100 to 1,100).", "prefers-color-scheme: dark",
		// From 1,000 to 1,000,000: 1,500 is at 0.1761 of 3 decades in 460 pixels.
		`<rect class="bar ours" x="330" y="98" width="27.0"`,
	} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
	if _, err := Chart([]*Case{&l.Cases[1]}, "none", ""); err == nil {
		t.Error("a case without rates was drawn")
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

func TestFill(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n<!-- a -->\nold\n<!-- end of a -->\nbetween\n<!-- b --><!-- end of b -->\nafter\n")
	if err := Fill(file, map[string]string{"a": "one\n", "b": "two"}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "before\n<!-- a -->\n\none\n\n<!-- end of a -->\nbetween\n<!-- b -->\n\ntwo\n\n<!-- end of b " +
		"-->\nafter\n"; string(got) != want {
		t.Errorf("got\n%s", got)
	}
	write("no marks")
	if err := Fill(file, map[string]string{"a": "one"}); err == nil {
		t.Error("a page without marks was taken")
	}
}
