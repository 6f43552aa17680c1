package main

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/verify/bench/plan"
)

// Names of the measurements of the costs case: each step in small and in large batches.
const (
	costAppendSmall = "append, one a transaction"
	costAppendLarge = "append, 40 a transaction"
	costRelaySmall  = "relay, small claims"
	costRelayLarge  = "relay, full claims"
	costFetchSmall  = "inbox, 50 a fetch and a transaction"
	costInboxLarge  = "inbox, 50 a fetch, 500 a transaction"
	costFetchLarge  = "inbox, large fetches, 500 a transaction"
	costIdle        = "relay that finds nothing"
	costCalm        = "the chain at 500/s"
)

// costsMeasured collects the measurements of the costs case.
type costsMeasured struct {
	samples       map[string][]plan.Sample
	fetched       map[string][]float64 // events of a fetch
	claim, settle []float64            // milliseconds of a full claim, to split Postgres' CPU
	kafkaStored   []float64            // bytes of an event on its way to the broker
	heap, index   map[string][]float64 // bytes of a row by table
	calm          []answer
}

// costsCase measures the cost of an event in each step of the chain, each step alone and in batches of two sizes, and
// writes costs.json for -model.
func costsCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("costs", fmt.Sprintf("%d events of %d bytes in large batches, and a quarter as many in small ones. "+
		"CPU, WAL and network traffic are those of each step alone", o.costEvents, payloadSize))
	if _, err := s.db.Exec(ctx, queryLedgerTable); err != nil {
		return err
	}
	m := &costsMeasured{
		samples: map[string][]plan.Sample{}, fetched: map[string][]float64{}, heap: map[string][]float64{},
		index: map[string][]float64{},
	}
	for turn := range o.repeats + 1 {
		if err := m.turn(ctx, s, o, rep, turn); err != nil {
			return err
		}
	}
	costs := m.costs()
	about, err := s.about(ctx)
	if err != nil {
		return err
	}
	costs.About = about
	if old, err := plan.Read(costsFile); err == nil {
		costs.Checks = old.Checks // until the simulation case makes new ones
	}
	rep.tell("%s", plan.CostTable(costs))
	s.costs = &costs
	if o.costs == "" {
		return nil
	}
	return plan.Write(o.costs, costs)
}

// costOf divides a measurement by n.
func costOf(g answer, n float64) plan.Cost {
	return plan.Cost{
		Client: g.Client * 1e6 / n, Postgres: g.Postgres * 1e6 / n, Kafka: g.Kafka * 1e6 / n,
		WAL: g.WAL / n, DatabaseNet: g.DatabaseNet / n, KafkaNet: g.KafkaNet / n,
	}
}

// A small claim has about 50 events for each partition, more than the smallest fetch brings: each fetch is one record
// batch.
const (
	costClaim = 50 * partitions
	costFetch = 16 << 10
)

// costStep is a measurement after some statements; table is what it fills.
type costStep struct {
	name   string
	before []string
	job    job
	table  string
}

// turn measures all steps once: in small batches, in the largest, and with a load at which nothing waits for a core.
func (m *costsMeasured) turn(ctx context.Context, s *stack, o options, rep *report, turn int) error {
	outbox := []string{queryEmptyOutbox, queryCheckpoint}
	inbox := []string{queryEmptyInbox, queryVacuumInbox, queryCheckpoint}
	vacuum := []string{queryVacuumOutbox} // no checkpoint between append and relay: see fill
	n := o.costEvents
	for _, steps := range [][]costStep{{
		{costAppendSmall, outbox, job{Append: true, PerAppend: 1, Producers: 8, Events: n / 4}, ""},
		{costRelaySmall, vacuum, job{Relay: true, ClaimEvents: costClaim, Events: n / 4}, ""},
		{costFetchSmall, inbox, job{Consume: true, FetchBytes: costFetch, Batch: 50, Events: n / 4}, ""},
		{costInboxLarge, inbox, job{Consume: true, FetchBytes: costFetch, Batch: inboxBatch, Events: n / 4}, ""},
	}, {
		{costAppendLarge, outbox, job{Append: true, PerAppend: 40, Producers: 4, Events: n}, "outbox_event"},
		{costRelayLarge, vacuum, job{Relay: true, Events: n}, ""},
		{costFetchLarge, inbox, job{Consume: true, Events: n}, "inbox_message"},
	}, {
		{costIdle, append(outbox, queryEmptyInbox), job{Relay: true, Seconds: o.steady}, ""},
		{costCalm, nil, job{
			Append: true, Relay: true, Consume: true, Rate: 500, PerAppend: steadyAppend, Producers: 1,
			Seconds: o.steady,
		}, ""},
	}} {
		topic, drop, err := s.topic(ctx)
		if err != nil {
			return err
		}
		for _, one := range steps {
			if err := m.step(ctx, s, o, rep, turn, topic, one); err != nil {
				drop()
				return fmt.Errorf("%s: %w", one.name, err)
			}
		}
		drop()
	}
	return nil
}

// step runs a child, and notes its measurement.
func (m *costsMeasured) step(ctx context.Context, s *stack, o options, rep *report, turn int, topic string,
	one costStep,
) error {
	if err := s.exec(ctx, one.before...); err != nil {
		return err
	}
	j := one.job
	j.URL, j.Brokers, j.Topic, j.Pumps = s.pg.URL(), s.brokers, topic, o.pumps
	j.Consumer = fmt.Sprintf("%s-%d-%d", topic, j.Batch, turn)
	g, err := child(ctx, j)
	if err != nil {
		return err
	}
	n := float64(max(g.Appended, g.Settled, g.Handled))
	f := figure{
		Case: "costs", Name: one.name, Turn: turn, Events: int(n), Seconds: g.Seconds, Rate: n / g.Seconds,
		P50: g.Apply50, P99: g.Apply99,
	}
	if n > 0 {
		c := costOf(g, n)
		f.CPU, f.PostgresCPU, f.KafkaCPU, f.WALBytes = c.Client, c.Postgres, c.Kafka, c.WAL
	}
	rep.add(f)
	if turn == 0 {
		return nil
	}
	switch one.name {
	case costIdle:
		m.samples[costIdle] = append(m.samples[costIdle], plan.Sample{Size: 1, Cost: costOf(g, g.Seconds)})
		return nil
	case costCalm:
		m.calm = append(m.calm, g)
	case costRelayLarge:
		m.claim, m.settle = append(m.claim, g.ClaimMS), append(m.settle, g.SettleMS)
		m.kafkaStored = append(m.kafkaStored, g.KafkaNet/float64(g.Settled))
	}
	batches := max(g.Transactions, g.Claims, g.Batches)
	sample := plan.Sample{Size: n / float64(max(batches, 1)), Cost: costOf(g, n)}
	m.samples[one.name] = append(m.samples[one.name], sample)
	m.fetched[one.name] = append(m.fetched[one.name], n/float64(max(g.Fetches, 1)))
	if one.table == "" {
		return nil
	}
	var heap, index float64
	err = s.db.QueryRow(ctx, querySizes, one.table).Scan(&heap, &index)
	m.heap[one.table] = append(m.heap[one.table], heap/float64(j.Events))
	m.index[one.table] = append(m.index[one.table], index/float64(j.Events))
	return err
}

func mid(all []float64) float64 { v, _, _ := spread(all); return v }

// costs splits the medians of all turns into the costs of a batch and of an event.
func (m *costsMeasured) costs() plan.Costs {
	of := func(name string) plan.Sample { return plan.Median(m.samples[name]) }
	c := plan.Costs{
		Append:     plan.Fit(of(costAppendSmall), of(costAppendLarge)),
		Relay:      plan.Fit(of(costRelaySmall), of(costRelayLarge)),
		ClaimShare: mid(m.claim) / max(mid(m.claim)+mid(m.settle), 1e-9),
		Idle:       of(costIdle).Cost,
		Sizes: plan.Sizes{
			OutboxHeap: mid(m.heap["outbox_event"]), OutboxIndex: mid(m.index["outbox_event"]),
			InboxHeap: mid(m.heap["inbox_message"]), InboxIndex: mid(m.index["inbox_message"]),
			Kafka: mid(m.kafkaStored),
		},
	}
	// Two runs differ only in how many events a transaction has; with that taken off, the third differs in its fetches.
	small, large, whole := of(costFetchSmall), of(costInboxLarge), of(costFetchLarge)
	transaction := plan.Fit(small, large).Batch
	without := func(s plan.Sample, name string) plan.Sample {
		return plan.Sample{Size: mid(m.fetched[name]), Cost: s.Cost.Less(transaction, 1/s.Size)}
	}
	fetch := plan.Fit(without(small, costFetchSmall), without(whole, costFetchLarge))
	c.Fetch = plan.Stage{Batch: fetch.Batch}
	c.Inbox = plan.Stage{Batch: transaction, Event: fetch.Event}
	c.Waits = m.waits(c)
	return c
}

// waits returns the time of each step beyond its CPU time, at low load.
func (m *costsMeasured) waits(c plan.Costs) plan.Waits {
	var w struct{ append, claim, publish, settle, handle []float64 }
	for _, g := range m.calm {
		claimed := c.Relay.Of(float64(g.Settled) / float64(max(g.Claims, 1)))
		database := claimed.Postgres * 1e-3
		beyond := func(all *[]float64, took, cpu float64) { *all = append(*all, max(took-cpu, 0.05)) }
		beyond(&w.append, g.AppendMS, c.Append.Of(steadyAppend).Seconds()*1e3)
		beyond(&w.claim, g.ClaimMS, database*c.ClaimShare)
		beyond(&w.settle, g.SettleMS, database*(1-c.ClaimShare))
		beyond(&w.publish, g.PublishMS, (claimed.Client+claimed.Kafka)*1e-3)
		beyond(&w.handle, g.HandleMS, c.Inbox.Of(float64(g.Handled)/float64(max(g.Batches, 1))).Seconds()*1e3)
	}
	return plan.Waits{
		Append: mid(w.append), Claim: mid(w.claim), Publish: mid(w.publish), Settle: mid(w.settle),
		Handle: mid(w.handle),
	}
}
