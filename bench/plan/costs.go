// Package plan says what a rate of events needs: CPU, log, disk, network, connections, and how many of each. It
// computes with costs that the benchmark has measured, adds what nobody can measure on one machine as named
// assumptions, and simulates the chain from append to effect, so that the same costs can be checked against a measured
// run.
package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
)

// Cost is what one thing takes: CPU in microseconds by the process that spends it, and bytes. Client is the process
// that uses this library: producer, relay or worker. DatabaseNet and KafkaNet count both directions.
type Cost struct {
	Client      float64 `json:"client_us"`
	Postgres    float64 `json:"postgres_us"`
	Kafka       float64 `json:"kafka_us"`
	WAL         float64 `json:"wal_bytes"`
	DatabaseNet float64 `json:"database_net_bytes"`
	KafkaNet    float64 `json:"kafka_net_bytes"`
}

// parts are the fields, so that arithmetic is written once.
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

// Of is what one batch of n events costs.
func (s Stage) Of(n float64) Cost { return s.Batch.plus(s.Event, n) }

// Per is what one event costs in batches of n.
func (s Stage) Per(n float64) Cost { return s.Event.plus(s.Batch, 1/n) }

// Sample is a measured cost of one event in batches of Size events.
type Sample struct {
	Size float64
	Cost Cost
}

// Fit splits two samples of different sizes into what a batch and what an event costs. No part is negative: where noise
// says so it is zero, and the other explains the smaller batches alone.
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

// Less is a cost with so many of another taken off; noise leaves nothing below zero.
func (c Cost) Less(d Cost, times float64) Cost {
	out := c.plus(d, -times)
	for _, part := range out.parts() {
		*part = max(*part, 0)
	}
	return out
}

// Waits are what a step waits for besides a core: the disk, the network, other processes. Milliseconds.
type Waits struct {
	Append  float64 `json:"append_ms"`
	Claim   float64 `json:"claim_ms"`
	Publish float64 `json:"publish_ms"`
	Settle  float64 `json:"settle_ms"`
	Handle  float64 `json:"handle_ms"`
}

// Sizes are bytes that an event takes where it is kept.
type Sizes struct {
	OutboxHeap  float64 `json:"outbox_heap"`
	OutboxIndex float64 `json:"outbox_index"`
	InboxHeap   float64 `json:"inbox_heap"`
	InboxIndex  float64 `json:"inbox_index"`
	Kafka       float64 `json:"kafka"`
}

// Costs is what the benchmark has measured, and what stands in costs.json.
type Costs struct {
	About  map[string]string `json:"about"`
	Append Stage             `json:"append"` // batch: a transaction with nothing else in it
	Relay  Stage             `json:"relay"`  // batch: a claim, from look to settle
	// ClaimShare is the claim's part of the relay's CPU in Postgres; the settle has the rest. By the times that they
	// take.
	ClaimShare float64 `json:"claim_share"`
	Fetch      Stage   `json:"fetch"` // batch: a fetch; its Event stands in Inbox
	Inbox      Stage   `json:"inbox"` // batch: a transaction; with the effect, one row of a ledger
	// Idle is what a second costs of a relay that looks for events and finds none, with both servers.
	Idle   Cost    `json:"idle"`
	Waits  Waits   `json:"waits"`
	Sizes  Sizes   `json:"sizes"`
	Checks []Check `json:"checks,omitempty"`
}

// measuredPartitions is how many the topics have that costs are measured with.
const measuredPartitions = 8

// relayed is what the relay takes for an event in claims of n. A batch's cost is that of a claim that reaches all
// partitions it was measured with; to Kafka and to its client it is one of requests, and a small claim needs fewer, one
// for more partitions more.
func (c Costs) relayed(n float64, partitions int) Cost {
	p := float64(partitions)
	requests := p * (1 - math.Pow(1-1/p, n)) / measuredPartitions
	batch := c.Relay.Batch
	batch.Client, batch.Kafka, batch.KafkaNet = batch.Client*requests, batch.Kafka*requests, batch.KafkaNet*requests
	return c.Relay.Event.plus(batch, 1/n)
}

// Check is one quantity of a measured run beside what the simulation said of it.
type Check struct {
	Load      string  `json:"load"`
	What      string  `json:"what"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
}

// Error is by how much the prediction is off, relative to what was measured.
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
