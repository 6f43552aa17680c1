package history

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// A correct run passes, whatever happened in it.
func TestCheckPassesCorrectRuns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := generate(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 300).Draw(t, "events"))
		if v := Check(in); !v.OK() {
			t.Fatalf("%s", v)
		}
	})
}

// Any single mutation of a correct run is found, by its name, and called nothing that it is not.
func TestCheckFindsEveryMutation(t *testing.T) {
	t.Parallel()
	named := map[Name]bool{SecretLeaked: true} // TestLeaks
	for name, m := range mutations() {
		for _, n := range m.found {
			named[n] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := 0
			rapid.Check(t, func(rt *rapid.T) {
				in := generate(rapid.Uint64().Draw(rt, "seed"), rapid.IntRange(60, 200).Draw(rt, "events"))
				x := &mutant{Input: &in, T: rt}
				if !m.make(x) {
					return // nothing here to mutate
				}
				made++
				v := Check(in)
				may := map[Name]bool{}
				for _, n := range m.found {
					if may[n] = true; v.Count(n) == 0 {
						rt.Fatalf("%s was not found:\n%s", n, v)
					}
				}
				for _, n := range m.also {
					may[n] = true
				}
				for _, found := range v.Violations {
					if !may[found.Name] {
						rt.Fatalf("it is called %s too:\n%s", found.Name, v)
					}
				}
			})
			if made < 10 {
				t.Errorf("only %d runs could be mutated", made)
			}
		})
	}
	for _, k := range Kinds() {
		if !named[k.Name] {
			t.Errorf("no mutation shows that %s is found", k.Name)
		}
		if k.Invariant == "" || k.Meaning == "" {
			t.Errorf("%s says not what it is", k.Name)
		}
	}
}

// What a run's faults excuse is counted and does not fail it.
func TestCheckAllows(t *testing.T) {
	t.Parallel()
	in := generate(1, 100)
	in.Dump.Lanes[3].Overdue = true
	in.Allowed.Names = map[Name]string{OverdueLease: "its relay was killed"}
	v := Check(in)
	if !v.OK() || v.Count(OverdueLease) != 1 || !strings.Contains(v.String(), "its relay was killed") {
		t.Errorf("verdict: %s", v)
	}
	in.Allowed = Allowed{Unfinished: true}
	in.Dump.Claims = []Claim{{Lane: 1, First: 7, Events: 2}}
	if v := Check(in); !v.OK() {
		t.Errorf("an unfinished run: %s", v)
	}
}

// A violation is told: who did what, with the faults around it, and what is there in the end.
func TestCheckTellsAStory(t *testing.T) {
	t.Parallel()
	in := generate(7, 80)
	twice := in.Dump.Effects[5]
	in.Dump.Effects = append(in.Dump.Effects, twice)
	v := Check(in)
	told := v.String()
	for _, want := range []string{
		"I3 violated: second-effect: 1", "is about to commit " + twice.ID.String(), "sends " + twice.ID.String(), "-- fault of producer: kill",
		twice.ID.String() + " is applied", "in the end: " + twice.ID.String() + " is committed", "ledger says done", "it had an effect at",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("the story does not say %q:\n%s", want, told)
		}
	}
	if _, err := json.Marshal(v); err != nil {
		t.Error(err)
	}
}

func TestLeaks(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse"
	v, err := Leaks("relay.log", strings.NewReader("fine\npassword="+secret+" refused\n"), []string{"", secret})
	if err != nil || v == nil || v.Count != 1 || v.Invariant != "I10" || strings.Contains(v.Examples[0].What, secret) {
		t.Errorf("found %+v, %v", v, err)
	}
	var verdict Verdict
	verdict.Add(v)
	if v, err := Leaks("relay.log", strings.NewReader("fine\n"), []string{"", secret}); v != nil || err != nil || verdict.OK() {
		t.Errorf("found %+v, %v", v, err)
	}
}

// BenchmarkCheck judges a run of a million events: go test -run - -bench Check -benchtime 1x ./internal/history
func BenchmarkCheck(b *testing.B) {
	in := generate(1, 1_000_000)
	entries := 0
	for _, p := range in.Histories {
		entries += len(p.Entries)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		begin := time.Now()
		v := Check(in)
		if !v.OK() {
			b.Fatal(v)
		}
		runtime.ReadMemStats(&after)
		b.Logf("%d events, %d records, %d effects, %d entries: %v, %d MiB allocated, beside an input of %d MiB", v.Counts.Events, v.Counts.Records, v.Counts.Effects,
			entries, time.Since(begin).Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, before.HeapAlloc>>20)
	}
}

// other is an id that nobody has.
func other() uuid.UUID { return uuid.MustParse("01999999-9999-7999-8999-999999999999") }
