package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// TestCheckPassesCorrectRuns: correct runs pass, whatever their faults.
func TestCheckPassesCorrectRuns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := generate(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 300).Draw(t, "events"))
		if v := Check(in); !v.OK() {
			t.Fatalf("%s", v)
		}
	})
}

// TestCheckFindsEveryMutation: each mutation of a correct run is found under its name, and under no other.
func TestCheckFindsEveryMutation(t *testing.T) {
	t.Parallel()
	named, all := map[Name]bool{SecretLeaked: true}, mutations() // TestLeaks
	for name, m := range all {
		for _, n := range m.found {
			named[n] = true
		}
		made := 0
		for seed := range uint64(8) {
			if ok, err := mutate(m, seed, 120); err != nil {
				t.Fatalf("%s, seed %d: %v", name, seed, err)
			} else if ok {
				made++
			}
		}
		if made < 4 {
			t.Errorf("%s: only %d runs could be mutated", name, made)
		}
	}
	for _, k := range Kinds() {
		if !named[k.Name] {
			t.Errorf("no mutation shows that %s is found", k.Name)
		}
		if k.Invariant == "" || k.Meaning == "" {
			t.Errorf("%s has no invariant or no meaning", k.Name)
		}
	}
	names := slices.Sorted(maps.Keys(all))
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "mutation")
		if _, err := mutate(all[name], rapid.Uint64().Draw(t, "seed"),
			rapid.IntRange(1, 200).Draw(t, "events")); err != nil {
			t.Fatal(err)
		}
	})
}

// mutate checks a run with one mutation; false: it has nothing to mutate.
func mutate(m mutation, seed uint64, events int) (bool, error) {
	in := generate(seed, events)
	if len(in.Dump.Effects) == 0 || !m.apply(&mutant{&in, rand.New(rand.NewPCG(seed, 2))}) {
		return false, nil
	}
	v := Check(in)
	for _, n := range m.found {
		if v.Count(n) == 0 {
			return true, fmt.Errorf("%s was not found:\n%s", n, v)
		}
	}
	for _, found := range v.Violations {
		if !slices.Contains(m.found, found.Name) && !slices.Contains(m.allowed, found.Name) {
			return true, fmt.Errorf("%s was found too:\n%s", found.Name, v)
		}
	}
	return true, nil
}

// TestCheckAllows: allowed violations are counted and do not fail the run.
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

// TestCheckWhatAGoneTopicHides: records of a topic that was made again may be gone, and no other is excused: those that
// are there are applied, in order.
func TestCheckWhatAGoneTopicHides(t *testing.T) {
	t.Parallel()
	in := generate(11, 300)
	x := &mutant{Input: &in}
	a, b := x.effects(func(first *Effect) bool { return len(x.sends(first.ID)) == 1 })
	if a == nil {
		t.Fatal("no two effects of a key")
	}
	*a, *b = *b, *a
	x.Allowed.Gone = map[string]bool{x.event(b.ID).Topic: true}
	if n := Check(in).Count(AppliedOutOfOrder); n != 1 {
		t.Errorf("%d effects out of order, want 1", n)
	}
}

// TestCheckTellsAStory: a violation has a story of entries, faults and the final state.
func TestCheckTellsAStory(t *testing.T) {
	t.Parallel()
	in := generate(7, 80)
	twice := in.Dump.Effects[5]
	in.Dump.Effects = append(in.Dump.Effects, twice)
	v := Check(in)
	told := v.String()
	for _, want := range []string{
		"I3 violated: second-effect: 1", "is about to commit " + twice.ID.String(), "sends " + twice.ID.String(),
		"-- fault of producer: kill", twice.ID.String() + " is applied", "in the end: " + twice.ID.String() +
			" is committed", "ledger says done",
		"it had an effect at",
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
	if v, err := Leaks("relay.log", strings.NewReader("fine\n"), []string{"", secret}); v != nil || err != nil ||
		verdict.OK() {
		t.Errorf("found %+v, %v", v, err)
	}
}

// BenchmarkCheck judges a run of a million events: go test -run - -bench Check -benchtime 1x ./verify/history
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
		b.Logf("%d events, %d records, %d effects, %d entries: %v, %d MiB allocated, beside an input of %d MiB",
			v.Counts.Events, v.Counts.Records, v.Counts.Effects,
			entries, time.Since(begin).Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20,
			before.HeapAlloc>>20)
	}
}

// other is an unused id.
func other() uuid.UUID { return uuid.MustParse("01999999-9999-7999-8999-999999999999") }

// TestCheckCountsOffsetsThatWentBack: an offset that goes back only causes duplicates, so it is counted.
func TestCheckCountsOffsetsThatWentBack(t *testing.T) {
	t.Parallel()
	in := generate(3, 60)
	audits := &in.Histories[3]
	last := audits.Entries[len(audits.Entries)-1]
	part := last.Audit.Partitions[0]
	part.Committed--
	last.N++
	last.Audit = &Audit{Consumer: last.Audit.Consumer, Partitions: []AuditPartition{part}}
	audits.Entries = append(audits.Entries, last)
	if v := Check(in); !v.OK() || v.Counts.OffsetsBack != 1 {
		t.Errorf("%d went back: %s", v.Counts.OffsetsBack, v)
	}
}
