package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Rates are the rates in the tables, in events per second.
func Rates() []float64 { return []float64{1_000, 10_000, 100_000, 1_000_000} }

// Sections returns the Markdown tables of docs/scaling.md by the names of their marks.
func Sections(c Costs, a Assumptions) map[string]string {
	return map[string]string{
		"costs": CostTable(c), "needs": NeedTable(c, a), "limits": LimitTable(c, a),
	}
}

// CostTable has the cost of an event in each step, in small and in large batches.
func CostTable(c Costs) string {
	var t table
	t.row("one event costs", "client, µs CPU", "Postgres, µs CPU", "Kafka, µs CPU", "log, bytes",
		"to and from Postgres, bytes", "to and from Kafka, bytes")
	line := func(name string, k Cost) {
		t.row(name, fig(k.Client), fig(k.Postgres), fig(k.Kafka), fig(k.WAL), fig(k.DatabaseNet), fig(k.KafkaNet))
	}
	line("append, a transaction for each", c.Append.Per(1))
	line("append, 40 in a transaction", c.Append.Per(40))
	line("relay, claims of 10", c.relayed(10, measuredPartitions))
	line("relay, claims of 8,000", c.Relay.Per(claimEvents))
	line("fetch and inbox with effect, one a transaction", c.Inbox.Per(1).plus(c.Fetch.Per(1), 1))
	line("fetch and inbox with effect, 500 a transaction", c.Inbox.Per(inboxBatch).plus(c.Fetch.Per(inboxBatch), 1))
	line("a relay that finds nothing, each second", c.Idle)
	z, w := c.Sizes, c.Waits
	return aboutLine(c.About) + t.String() + fmt.Sprintf(
		"\nOf the relay's CPU in Postgres the claim has %.0f%%, the settle the rest. A step waits, besides for a "+
			"core, for %.1f ms (append), %.1f (claim), %.1f (publish), %.1f (settle), %.1f (inbox).\n"+
			"\nBytes that an event takes: %.0f in `outbox_event` and %.0f in its index, %.0f in Kafka and replica, "+
			"%.0f in `inbox_message` and %.0f in its index.\n",
		c.ClaimShare*100, w.Append, w.Claim, w.Publish, w.Settle, w.Handle, z.OutboxHeap, z.OutboxIndex, z.Kafka,
		z.InboxHeap, z.InboxIndex)
}

func aboutLine(about map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(about)) {
		parts = append(parts, k+": "+about[k])
	}
	return "Measured: " + strings.Join(parts, "; ") + ".\n\n"
}

// NeedTable has the resources for each rate.
func NeedTable(c Costs, a Assumptions) string {
	var needs []Need
	var t table
	head := []string{"events a second"}
	for _, rate := range Rates() {
		needs, head = append(needs, For(c, a, rate)), append(head, group(rate))
	}
	t.row(head...)
	line := func(name string, get func(Need) string) {
		cells := []string{name}
		for _, n := range needs {
			cells = append(cells, get(n))
		}
		t.row(cells...)
	}
	number := func(get func(Need) float64) func(Need) string { return func(n Need) string { return fig(get(n)) } }
	whole := func(get func(Need) int) func(Need) string {
		return func(n Need) string { return group(float64(get(n))) }
	}
	size := func(get func(Need) float64) func(Need) string { return func(n Need) string { return bytes(get(n)) } }
	line("**outbox databases**", whole(func(n Need) int { return n.Outboxes }))
	line("the same with 40 events in a producer's transaction",
		func(n Need) string { b := a; b.PerAppend = 40; return group(float64(For(c, b, n.Rate).Outboxes)) })
	line("fullest part of each, of what may be used", func(n Need) string { return fullness(n.OutboxFullest) })
	line("**inbox databases**", whole(func(n Need) int { return n.InboxDatabases }))
	line("fullest part of each, of what may be used", func(n Need) string { return fullness(n.InboxFullest) })
	line("**relays**, each with two pumps", whole(func(n Need) int { return n.Relays }))
	line("**partitions**, in a topic for each outbox database", whole(func(n Need) int { return n.Partitions }))
	line("**brokers**", whole(func(n Need) int { return n.Brokers }))
	line("busy cores: producers, for appending", number(func(n Need) float64 { return n.Producers }))
	line("busy cores: Postgres, append", number(func(n Need) float64 { return n.Append }))
	line("busy cores: Postgres, claim", number(func(n Need) float64 { return n.Claim }))
	line("busy cores: Postgres, settle", number(func(n Need) float64 { return n.Settle }))
	line("busy cores: relays", number(func(n Need) float64 { return n.Relay }))
	line("busy cores: brokers, followers included", number(func(n Need) float64 { return n.Kafka }))
	line("busy cores: workers", number(func(n Need) float64 { return n.Workers }))
	line("busy cores: Postgres, inbox and effect", number(func(n Need) float64 { return n.Inbox }))
	line("events of a claim, of an inbox transaction",
		func(n Need) string { return fig(n.ClaimSize) + ", " + fig(n.InboxSize) })
	line("connections: producers, relays, workers", func(n Need) string {
		return fmt.Sprintf("%s, %s, %s", group(float64(n.ProducerConns)), group(float64(n.RelayConns)),
			group(float64(n.WorkerConns)))
	})
	line("log a second: outbox, inbox and effect",
		func(n Need) string { return bytes(n.OutboxWAL) + ", " + bytes(n.InboxWAL) })
	line("log a day, for archive and standby", size(func(n Need) float64 { return n.WALPerDay }))
	line("network a second: outbox, inbox",
		func(n Need) string { return bytes(n.OutboxNet) + ", " + bytes(n.InboxNet) })
	line("network a second: Kafka's clients, its replicas",
		func(n Need) string { return bytes(n.KafkaNet) + ", " + bytes(n.ReplicasNet) })
	line("outbox after an outage of Kafka", size(func(n Need) float64 { return n.Backlog }))
	line("Kafka's disks, replicas included", size(func(n Need) float64 { return n.KafkaDisk }))
	line("inbox: a week of it", size(func(n Need) float64 { return n.InboxWeek }))
	line("inbox: its window", size(func(n Need) float64 { return n.InboxWindow }))
	return t.String() + fmt.Sprintf("\nAssumed: %.0f event in a producer's transaction, whose connection is busy for "+
		"%.0f ms beyond what is measured; databases of %.0f cores and brokers of %.0f, "+
		"disks that take %s of log a second, networks of %s a second, %.0f%% of each used; %.0f replicas, %.0f days "+
		"of retention, a window of %.0f days, %.0f minutes without Kafka.\n",
		a.PerAppend, a.HandleUsed*1e3, a.DatabaseCores, a.BrokerCores, bytes(a.WALRate), bytes(a.NetRate), a.Use*100,
		a.Replicas, a.KafkaDays, a.WindowDays, a.Outage/60)
}

// LimitTable has the rates at which one instance of each kind is full.
func LimitTable(c Costs, a Assumptions) string {
	var t table
	t.row("one of these", "is full at events a second", "because of")
	add := func(what string, rate float64, why string) { t.row(what, group(round(rate)), why) }
	forty := a
	forty.PerAppend = 40
	for _, l := range OutboxEnds(c, a) {
		add(fmt.Sprintf("outbox database, %.0f event a transaction", a.PerAppend), l.Rate, l.What)
	}
	for _, l := range OutboxEnds(c, forty)[:2] {
		add("outbox database, 40 events a transaction", l.Rate, l.What)
	}
	add("pump", PumpRate(c)*a.Use, "one claim after the other")
	for _, l := range InboxEnds(c, a) {
		add("inbox database", l.Rate, l.What)
	}
	add("partition", PartitionRate(c)*a.Use, "one transaction of its consumer after the other")
	return t.String()
}

func fullness(f Fullness) string { return fmt.Sprintf("%s, %.0f%%", f.What, f.Part*100) }

// CheckTable compares the simulation with measurements.
func CheckTable(c Costs) string {
	var t table
	t.row("load", "what", "predicted", "measured", "error")
	for _, k := range c.Checks {
		t.row(k.Load, k.What, fig(k.Predicted), fig(k.Measured), fmt.Sprintf("%+.0f%%", k.Error()*100))
	}
	return t.String()
}

// table is Markdown.
type table struct {
	strings.Builder
	rows int
}

func (t *table) row(cells ...string) {
	t.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	if t.rows++; t.rows == 1 {
		t.WriteString("|" + strings.Repeat("---|", len(cells)) + "\n")
	}
}

// fig prints two or three significant digits.
func fig(v float64) string {
	switch {
	case v == 0:
		return "-"
	case math.Abs(v) < 0.01:
		return "under 0.01"
	case math.Abs(v) < 1:
		return fmt.Sprintf("%.2f", v)
	case math.Abs(v) < 100:
		return fmt.Sprintf("%.1f", v)
	default:
		return group(round(v))
	}
}

// round keeps three significant digits.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) {
		return v
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	return math.Round(v/unit) * unit
}

// group prints a whole number with commas between thousands.
func group(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func bytes(v float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if v >= u.size {
			return fig(v/u.size) + " " + u.name
		}
	}
	return fig(v) + " B"
}
