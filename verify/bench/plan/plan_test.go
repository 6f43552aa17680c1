package plan

import (
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// simple returns costs that are easy to check by hand.
func simple() Costs {
	return Costs{
		Append: Stage{
			Batch: Cost{Client: 20, Postgres: 80, WAL: 100},
			Event: Cost{Client: 5, Postgres: 15, WAL: 900, DatabaseNet: 1000},
		},
		Relay: Stage{
			Batch: Cost{Client: 100, Postgres: 800, Kafka: 100},
			Event: Cost{Client: 4, Postgres: 10, Kafka: 6, WAL: 100, DatabaseNet: 800, KafkaNet: 400},
		},
		ClaimShare: 0.5,
		Fetch:      Stage{Batch: Cost{Client: 50, Kafka: 50}},
		Inbox: Stage{Batch: Cost{Client: 100, Postgres: 400}, Event: Cost{
			Client: 5, Postgres: 15, WAL: 300,
			DatabaseNet: 100, KafkaNet: 400,
		}},
		Waits: Waits{Append: 1, Claim: 1, Publish: 1, Settle: 1, Handle: 1},
		Sizes: Sizes{OutboxHeap: 700, OutboxIndex: 50, InboxHeap: 60, InboxIndex: 40, Kafka: 400},
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	want := Stage{
		Batch: Cost{Client: 30, Postgres: 200, Kafka: 1, WAL: 50},
		Event: Cost{Client: 2, Postgres: 7, WAL: 500, KafkaNet: 9},
	}
	got := Fit(Sample{10, want.Per(10)}, Sample{1000, want.Per(1000)})
	a, b := got.Batch.parts(), want.Batch.parts()
	c, d := got.Event.parts(), want.Event.parts()
	for i := range a {
		if math.Abs(*a[i]-*b[i]) > 1e-9 || math.Abs(*c[i]-*d[i]) > 1e-9 {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
	for _, noisy := range []Stage{
		Fit(Sample{10, Cost{Client: 5}}, Sample{100, Cost{Client: 6}}),
		Fit(Sample{10, Cost{Client: 100}}, Sample{100, Cost{Client: 1}}),
	} {
		if noisy.Batch.Client < 0 || noisy.Event.Client < 0 || noisy.Batch.Client+noisy.Event.Client == 0 {
			t.Errorf("a negative cost, or none: %+v", noisy)
		}
	}
}

// An outbox of 9.6 usable cores at 95 µs of Postgres for each event that is appended alone, and what its relay takes,
// ends at 9.6 of their sum.
func TestOutboxLimit(t *testing.T) {
	t.Parallel()
	c, a := simple(), DefaultAssumptions()
	got := First(OutboxEnds(c, a))
	claim := got.Rate * probeEvery / 4 // pumps
	if want := 9.6 / ((95 + 10 + 800/claim) * 1e-6); got.What != "Postgres' CPU" || math.Abs(got.Rate/want-1) > 1e-3 {
		t.Errorf("%+v, want Postgres' CPU at %.0f", got, want)
	}
	n := For(c, a, 1_000_000)
	if want := int(math.Ceil(1_000_000 / got.Rate)); n.Outboxes != want || n.OutboxFullest.Part > 1.001 ||
		n.OutboxFullest.Part < 0.9 {
		t.Errorf("%d databases, want %d; they are full to %v", n.Outboxes, want, n.OutboxFullest)
	}
	// Forty in a transaction: the log comes first, at 1,002.5 bytes an event.
	a.PerAppend = 40
	a.WALRate = 10e6
	if got := First(OutboxEnds(c, a)); got.What != "its log" || math.Abs(got.Rate/(6e6/1002.5)-1) > 1e-6 {
		t.Errorf("%+v, want the log at %.0f", got, 6e6/1002.5)
	}
}

func TestMoreNeedsMore(t *testing.T) {
	t.Parallel()
	var last Need
	for i, rate := range Rates() {
		n := For(simple(), DefaultAssumptions(), rate)
		if i > 0 {
			for what, pair := range map[string][2]float64{
				"cores of Postgres": {last.Append, n.Append}, "relays": {float64(last.Relays) - 1, float64(n.Relays)},
				"partitions": {float64(last.Partitions) - 1, float64(n.Partitions)},
				"log":        {last.OutboxWAL, n.OutboxWAL}, "inbox": {last.InboxWeek, n.InboxWeek},
				"claims": {last.ClaimSize - 1, n.ClaimSize},
			} {
				if pair[1] <= pair[0] {
					t.Errorf("%s: %v at %v events a second, %v at less", what, pair[1], rate, pair[0])
				}
			}
		}
		if n.Pumps > laneCount*n.Outboxes || n.Relays < 2 {
			t.Errorf("%d pumps and %d relays on %d outboxes", n.Pumps, n.Relays, n.Outboxes)
		}
		last = n
	}
	// A hundred bytes a row: a week of 1,000 events a second.
	if n := For(simple(), DefaultAssumptions(), 1000); math.Abs(n.InboxWeek-60.48e9) > 1e6 ||
		math.Abs(n.InboxWindow-120.96e9) > 1e6 {
		t.Errorf("a week weighs %v, the window %v", n.InboxWeek, n.InboxWindow)
	}
}

// TestSimulateSteady: for all costs, the chain keeps up below saturation, its CPU is that of the costs, and no latency
// is below the waits.
func TestSimulateSteady(t *testing.T) {
	t.Parallel()
	c := simple()
	out := Simulate(c, Load{Rate: 5000, PerAppend: 20, Producers: 4, Seconds: 20, Cores: 2, Pumps: 2, Partitions: 8})
	if math.Abs(out.Rate/5000-1) > 0.02 {
		t.Errorf("%.0f events a second, want 5000", out.Rate)
	}
	// Postgres: 5000 events at 15+80/20 for append, 10 and 15 at least for the rest.
	if least := 5000 * (19 + 10 + 15) * 1e-6; out.Postgres < least || out.Postgres > 4*least {
		t.Errorf("%.2f cores of Postgres, want more than %.2f and not many times that", out.Postgres, least)
	}
	if out.Publish50 < 3 || out.Publish99 < out.Publish50 || out.Apply50 < out.Publish50+1 || out.Apply99 > 1000 {
		t.Errorf("latencies make no sense: %+v", out)
	}
}

// Two cores and 70 µs an event in all: a backlog drains at what the cores allow, and a steady load above that comes no
// faster.
func TestSimulateSaturated(t *testing.T) {
	t.Parallel()
	c := simple()
	perEvent := c.Relay.Per(claimEvents).Seconds() + c.Inbox.Per(inboxBatch).Seconds() +
		c.Fetch.Batch.Seconds()/inboxBatch
	out := Simulate(c, Load{Seconds: 60, Cores: 2, Pumps: 2, Partitions: 8, Waiting: 200_000})
	if bound := 2 / perEvent; out.Rate > bound*1.02 || out.Rate < bound*0.7 {
		t.Errorf("%.0f events a second, bound by %.0f", out.Rate, bound)
	}
	if used := out.Client + out.Postgres + out.Kafka; used > 2.02 {
		t.Errorf("%.2f of two cores used", used)
	}
	over := Simulate(c, Load{Rate: 60_000, PerAppend: 20, Producers: 4, Seconds: 5, Cores: 2, Pumps: 2, Partitions: 8})
	if bound := 2 / (perEvent + c.Append.Per(20).Seconds()); over.Rate > bound || over.Rate < bound/2 {
		t.Errorf("%.0f events a second of 60,000, bound by %.0f", over.Rate, bound)
	}
}

func TestTablesAndFile(t *testing.T) {
	t.Parallel()
	c := simple()
	c.About, c.Checks = map[string]string{"cores": "2"}, []Check{{"5,000/s", "events a second", 5100, 5000}}
	file := filepath.Join(t.TempDir(), "costs.json")
	if err := Write(file, c); err != nil {
		t.Fatal(err)
	}
	back, err := Read(file)
	if err != nil || !reflect.DeepEqual(back, c) {
		t.Fatalf("%+v, %v", back, err)
	}
	all := Sections(c, DefaultAssumptions())
	all["checks"] = CheckTable(c)
	for mark, want := range map[string]string{
		"costs":  "| append, a transaction for each | 25.0 | 95.0 | - | 1,000 | 1,000 | - |",
		"needs":  "| inbox: a week of it | 60.5 GB | 605 GB | 6.0 TB | 60.5 TB |",
		"limits": "| partition | ", "checks": "| 5,000/s | events a second | 5,100 | 5,000 | +2% |",
	} {
		if !strings.Contains(all[mark], want) {
			t.Errorf("%s: no %q in\n%s", mark, want, all[mark])
		}
	}
}
