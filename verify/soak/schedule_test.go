package soak

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// fault is an injected failure, all of whose properties are drawn before the run.
type fault struct {
	kind   string
	target string
	at     time.Duration // from the beginning of the run
	lasts  time.Duration
	param  uint64 // seeds draw
}

// draw is the generator for a kind's other choices, the same in every replay.
func (f fault) draw() *rand.Rand { return rand.New(rand.NewPCG(f.param, uint64(f.at))) }

// kind is a kind of fault.
type kind struct {
	name string
	// Faults of one track follow each other, those of different tracks overlap.
	track             string
	shortest, longest time.Duration
	targets           func(s settings) []string
	brokers           int  // only with this number of brokers; 0: any
	alone             bool // only with a single broker
	wal               bool // only when the relays read the WAL
	asked             bool // only if FAULTS names it
	checksEffect      bool // it calls took and noteProgress
	// begin injects the fault. undo may be nil.
	begin func(s *testbed, f fault) (undo func() error, err error)
}

// tracks, in the order of drawing, with the longest pause between two faults.
var tracks = []struct {
	name  string
	pause time.Duration
}{
	{"processes", 3 * time.Second},
	{"network", 3 * time.Second},
	{"postgres", 12 * time.Second},
	{"sessions", 4 * time.Second},
	{"kafka", 10 * time.Second},
	{"tenants", 3 * time.Second},
}

// plan draws the schedule. In each track all kinds occur before one occurs again.
func plan(s settings, kinds []kind) []fault {
	var all []fault
	for _, track := range tracks {
		draw := s.rng("track " + track.name)
		var deck []kind
		possible := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool {
			return k.track != track.name ||
				!selected(s, k)
		})
		for at := between(draw, time.Second, 4*time.Second); len(possible) > 0; {
			if len(deck) == 0 {
				deck = slices.Clone(possible)
				draw.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			k := deck[0]
			deck = deck[1:]
			targets := k.targets(s)
			f := fault{
				kind: k.name, target: targets[draw.IntN(len(targets))], at: at,
				lasts: between(draw, k.shortest, k.longest), param: draw.Uint64(),
			}
			if f.at+f.lasts > s.duration {
				break
			}
			all = append(all, f)
			at += f.lasts + between(draw, 500*time.Millisecond, track.pause)
		}
	}
	slices.SortStableFunc(all, func(a, b fault) int { return int(a.at - b.at) })
	return all
}

func selected(s settings, k kind) bool {
	return s.brokers >= k.brokers && (!k.alone || s.brokers == 1) && (!k.wal || s.follow) &&
		(len(s.faults) == 0 && !k.asked || slices.Contains(s.faults, k.name))
}

func between(draw *rand.Rand, least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return (least + time.Duration(draw.Int64N(int64(most-least)))).Round(10 * time.Millisecond)
}

func table(to io.Writer, faults []fault) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "begins\tlasts\tfault\tof")
	for _, f := range faults {
		fmt.Fprintf(w, "%v\t%v\t%s\t%s\n", f.at, f.lasts, f.kind, f.target)
	}
	_ = w.Flush()
}

func TestScheduleFollowsSeed(t *testing.T) {
	t.Parallel()
	text := func(seed uint64) string {
		var b strings.Builder
		table(&b, plan(settings{seed: seed, duration: 5 * time.Minute, brokers: 3}, kinds()))
		return b.String()
	}
	seven := text(7)
	if again := text(7); seven != again {
		t.Error("one seed gave two schedules")
	}
	if seven == text(8) {
		t.Error("two seeds gave one schedule")
	}
}

// TestScheduleHasEveryFault checks that half an hour has every possible kind, and no overlap within a track.
func TestScheduleHasEveryFault(t *testing.T) {
	t.Parallel()
	for _, brokers := range []int{1, 3} {
		s, observed, busy := settings{seed: 1, duration: 30 * time.Minute, brokers: brokers}, map[string]bool{},
			map[string]time.Duration{}
		trackOf := map[string]string{}
		for _, k := range kinds() {
			trackOf[k.name] = k.track
		}
		for _, f := range plan(s, kinds()) {
			observed[f.kind] = true
			if track := trackOf[f.kind]; f.at < busy[track] {
				t.Errorf("%s begins while another fault of its track lasts", f.kind)
			} else {
				busy[track] = f.at + f.lasts
			}
		}
		for _, k := range kinds() {
			if selected(s, k) && !observed[k.name] {
				t.Errorf("%d brokers: no %s in half an hour", brokers, k.name)
			}
		}
	}
}
