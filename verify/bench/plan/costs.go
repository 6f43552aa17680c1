// Package plan calculates the resources for a rate of events: CPU, WAL, disk, network, connections, and instances. It
// uses costs that the benchmark has measured, and named assumptions where one machine is not enough. It also simulates
// the chain from append to effect, so that the costs can be checked against a measured run.
package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
)

// Cost is CPU in microseconds by process, and bytes. Client is the process that uses this library: producer, relay or
// worker. DatabaseNet and KafkaNet count both directions.
type Cost struct {
	Client      float64 `json:"client_us"`
	Postgres    float64 `json:"postgres_us"`
	Kafka       float64 `json:"kafka_us"`
	WAL         float64 `json:"wal_bytes"`
	DatabaseNet float64 `json:"database_net_bytes"`
	KafkaNet    float64 `json:"kafka_net_bytes"`
}

// parts returns the fields, for arithmetic.
func (c *Cost) parts() [6]*float64 {
	return [6]*float64{&c.Client, &c.Postgres, &c.Kafka, &c.WAL, &c.DatabaseNet, &c.KafkaNet}
}

func (c Cost) plus(d Cost, times float64) Cost {
	to, from := c.parts(), d.parts()
	for i := range to {
		*to[i] += *from[i] * times
	}
	return c
}

// Seconds is the CPU time of all processes together.
func (c Cost) Seconds() float64 { return (c.Client + c.Postgres + c.Kafka) * 1e-6 }

// Stage is a step that works on batches: a transaction, a claim, a fetch. It costs Batch for each, and Event for each
// event in it.
type Stage struct {
	Batch Cost `json:"batch"`
	Event Cost `json:"event"`
}

// Of returns the cost of one batch of n events.
func (s Stage) Of(n float64) Cost { return s.Batch.plus(s.Event, n) }

// Per returns the cost of one event in batches of n.
func (s Stage) Per(n float64) Cost { return s.Event.plus(s.Batch, 1/n) }

// Sample is a measured cost of one event in batches of Size events.
type Sample struct {
	Size float64
	Cost Cost
}

// Fit splits two samples of different sizes into the costs of a batch and of an event. If noise makes a part negative
// it is zero, and the other part explains the smaller batches alone.
func Fit(small, large Sample) Stage {
	var s Stage
	batch, event := s.Batch.parts(), s.Event.parts()
	a, b := small.Cost.parts(), large.Cost.parts()
	for i := range batch {
		per := (*a[i] - *b[i]) / (1/small.Size - 1/large.Size)
		*batch[i], *event[i] = per, *b[i]-per/large.Size
		switch {
		case per < 0:
			*batch[i], *event[i] = 0, *b[i]
		case *event[i] < 0:
			*batch[i], *event[i] = *a[i]*small.Size, 0
		}
	}
	return s
}

// Median takes the median of each part.
func Median(all []Sample) Sample {
	if len(all) == 0 {
		return Sample{}
	}
	pick := func(get func(*Sample) float64) float64 {
		values := make([]float64, len(all))
		for i := range all {
			values[i] = get(&all[i])
		}
		slices.Sort(values)
		return (values[len(values)/2] + values[(len(values)-1)/2]) / 2
	}
	out := Sample{Size: pick(func(s *Sample) float64 { return s.Size })}
	for i, part := range out.Cost.parts() {
		*part = pick(func(s *Sample) float64 { return *s.Cost.parts()[i] })
	}
	return out
}

// Less subtracts a multiple of another cost; no part becomes negative.
func (c Cost) Less(d Cost, times float64) Cost {
	out := c.plus(d, -times)
	for _, part := range out.parts() {
		*part = max(*part, 0)
	}
	return out
}

// Waits are the times that a step waits for the disk, the network and other processes, in milliseconds.
type Waits struct {
	Append  float64 `json:"append_ms"`
	Claim   float64 `json:"claim_ms"`
	Publish float64 `json:"publish_ms"`
	Settle  float64 `json:"settle_ms"`
	Handle  float64 `json:"handle_ms"`
}

// Sizes are the bytes of an event in each store.
type Sizes struct {
	OutboxHeap  float64 `json:"outbox_heap"`
	OutboxIndex float64 `json:"outbox_index"`
	InboxHeap   float64 `json:"inbox_heap"`
	InboxIndex  float64 `json:"inbox_index"`
	Kafka       float64 `json:"kafka"`
}

// Costs are the measurements in costs.json.
type Costs struct {
	About  map[string]string `json:"about"`
	Append Stage             `json:"append"` // batch: a transaction with nothing else in it
	Relay  Stage             `json:"relay"`  // batch: a claim, from look to settle
	// ClaimShare is the claim's share of the relay's CPU in Postgres, by time; the settle has the rest.
	ClaimShare float64 `json:"claim_share"`
	Fetch      Stage   `json:"fetch"` // batch: a fetch; its Event stands in Inbox
	Inbox      Stage   `json:"inbox"` // batch: a transaction; with the effect, one row of a ledger
	// Idle is the cost per second of a relay that polls an empty outbox, with both servers.
	Idle   Cost    `json:"idle"`
	Waits  Waits   `json:"waits"`
	Sizes  Sizes   `json:"sizes"`
	Checks []Check `json:"checks,omitempty"`
}

// measuredPartitions is how many the topics have that costs are measured with.
const measuredPartitions = 8

// relayed returns the relay's cost of an event in claims of n. The measured cost of a batch is that of a claim with
// events for all measuredPartitions; for Kafka and its client it depends on the number of partitions in a claim.
func (c Costs) relayed(n float64, partitions int) Cost {
	p := float64(partitions)
	requests := p * (1 - math.Pow(1-1/p, n)) / measuredPartitions
	batch := c.Relay.Batch
	batch.Client, batch.Kafka, batch.KafkaNet = batch.Client*requests, batch.Kafka*requests, batch.KafkaNet*requests
	return c.Relay.Event.plus(batch, 1/n)
}

// Check is a quantity of a measured run with its prediction by the simulation.
type Check struct {
	Load      string  `json:"load"`
	What      string  `json:"what"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
}

// Error is the relative error of the prediction.
func (c Check) Error() float64 {
	if c.Measured == 0 {
		return 0
	}
	return c.Predicted/c.Measured - 1
}

// Read reads a costs file.
func Read(path string) (Costs, error) {
	var c Costs
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Write writes a costs file.
func Write(path string, c Costs) error {
	b, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
