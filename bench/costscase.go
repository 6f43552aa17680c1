package main

import (
	"context"
	"flag"
	"fmt"
	"maps"

	"github.com/effectonce/effectonce/bench/page"
	"github.com/effectonce/effectonce/bench/plan"
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
	sizes         map[string][]float64
	calm          []stageAnswer
}

func (o *options) planFlags(f *flag.FlagSet) {
	f.IntVar(&o.costEvents, "cost-events", 200_000, "events in large batches of the costs case, and in the "+
		"simulation's drain")
	f.Float64Var(&o.costSeconds, "cost-seconds", 5, "how long the costs case measures what is idle or calm, seconds")
	f.Float64Var(&o.steady, "steady", 10, "how long the simulation's steady loads are measured, seconds")
	f.StringVar(&o.rates, "rates", "5000,20000", "the simulation's steady loads, events a second")
	f.StringVar(&o.costs, "costs", costsFile, "where the costs case and the simulation write, and -model reads; with "+
		"-quick nothing is written unless this is set")
	f.BoolVar(&o.model, "model", false, "measure nothing: print what rates need, from -costs")
	f.StringVar(&o.figures, "figures", "", "measure nothing: print the tables of this file, which -json wrote")
	f.StringVar(&o.docs, "docs", "", "with -model and -figures: write into the pages of this folder instead")
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
		samples: map[string][]plan.Sample{}, fetched: map[string][]float64{},
		sizes: map[string][]float64{},
	}
	for turn := range o.repeats + 1 {
		for _, part := range []func(context.Context, *stack, options, *report, int) error{
			m.smallBatches, m.largeBatches, m.lowLoad,
		} {
			if err := part(ctx, s, o, rep, turn); err != nil {
				return err
			}
		}
	}
	costs := m.costs()
	about, err := s.about(ctx)
	if err != nil {
		return err
	}
	delete(about, "postgres_settings")
	costs.About = maps.Clone(about)
	if old, err := plan.Read(costsFile); err == nil {
		costs.Checks = old.Checks // until the simulation case makes new ones
	}
	rep.printf("%s", plan.CostTable(costs))
	s.costs = &costs
	if o.costs == "" {
		return nil
	}
	return plan.Write(o.costs, costs)
}

// stage runs a child and notes its measurement.
func (m *costsMeasured) stage(ctx context.Context, s *stack, rep *report, turn int, name, topic string, j job) (
	stageAnswer, error,
) {
	j.Kind, j.URL, j.Brokers, j.Topic = "stage", s.pg.URL(), s.brokers, topic
	if j.Stage.Consume {
		j.Stage.Consumer = fmt.Sprintf("%s-%d-%d", topic, j.Stage.Batch, turn)
	}
	a, err := child(ctx, j)
	if err != nil {
		return stageAnswer{}, fmt.Errorf("%s: %w", name, err)
	}
	g := a.Stage
	n := float64(max(g.Appended, g.Settled, g.Handled))
	f := figure{
		Case: "costs", Name: name, Turn: turn, Events: int(n), Seconds: g.Seconds, Rate: n / g.Seconds,
		P50: g.Apply50, P99: g.Apply99,
	}
	if n > 0 {
		f.CPU, f.PostgresCPU, f.KafkaCPU, f.WALBytes = g.Client*1e6/n, g.Postgres*1e6/n, g.Kafka*1e6/n, g.WAL/n
	}
	rep.add(f)
	if turn > 0 && n > 0 {
		batches := max(g.Transactions, g.Claims, g.Batches)
		m.samples[name] = append(m.samples[name], plan.Sample{Size: n / float64(max(batches, 1)), Cost: costOf(g, n)})
		m.fetched[name] = append(m.fetched[name], n/float64(max(g.Fetches, 1)))
	}
	return g, nil
}

// costOf divides a measurement by n.
func costOf(g stageAnswer, n float64) plan.Cost {
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

// smallBatches sends events one by one, in small claims and small record batches.
func (m *costsMeasured) smallBatches(ctx context.Context, s *stack, o options, rep *report, turn int) error {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return err
	}
	defer drop()
	n := o.costEvents / 4
	run := func(name string, j job, before ...string) error {
		j.Stage.Events = n
		if err := s.exec(ctx, before...); err != nil {
			return err
		}
		_, err := m.stage(ctx, s, rep, turn, name, topic, j)
		return err
	}
	// No checkpoint between append and relay: see fill.
	if err := run(costAppendSmall, job{Stage: stageJob{Append: true, PerAppend: 1, Producers: 8}}, queryEmptyOutbox,
		queryCheckpoint); err != nil {
		return err
	}
	if err := run(costRelaySmall, job{Pumps: o.pumps, ClaimEvents: costClaim, Stage: stageJob{Relay: true}},
		queryVacuumOutbox); err != nil {
		return err
	}
	empty := []string{queryEmptyInbox, queryVacuumInbox, queryCheckpoint}
	if err := run(costFetchSmall, job{Stage: stageJob{Consume: true, FetchBytes: costFetch, Batch: 50}},
		empty...); err != nil {
		return err
	}
	return run(costInboxLarge, job{Stage: stageJob{Consume: true, FetchBytes: costFetch, Batch: inboxBatch}}, empty...)
}

// largeBatches does the same in the largest batches.
func (m *costsMeasured) largeBatches(ctx context.Context, s *stack, o options, rep *report, turn int) error {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryCheckpoint); err != nil {
		return err
	}
	n := o.costEvents
	if _, err := m.stage(ctx, s, rep, turn, costAppendLarge, topic,
		job{Stage: stageJob{Append: true, PerAppend: 40, Producers: 4, Events: n}}); err != nil {
		return err
	}
	if err := m.size(ctx, s, n, "outbox_event", "outbox"); err != nil {
		return err
	}
	if err := s.exec(ctx, queryVacuumOutbox); err != nil {
		return err
	}
	g, err := m.stage(ctx, s, rep, turn, costRelayLarge, topic,
		job{Pumps: o.pumps, Stage: stageJob{Relay: true, Events: n}})
	if err != nil {
		return err
	}
	m.claim, m.settle = append(m.claim, g.ClaimMS), append(m.settle, g.SettleMS)
	m.kafkaStored = append(m.kafkaStored, g.KafkaNet/float64(g.Settled))
	if err := s.exec(ctx, queryEmptyInbox, queryVacuumInbox, queryCheckpoint); err != nil {
		return err
	}
	if _, err := m.stage(ctx, s, rep, turn, costFetchLarge, topic,
		job{Stage: stageJob{Consume: true, Events: n}}); err != nil {
		return err
	}
	return m.size(ctx, s, n, "inbox_message", "inbox")
}

// size notes the bytes of a table and its indexes per row.
func (m *costsMeasured) size(ctx context.Context, s *stack, n int, table, name string) error {
	var heap, index float64
	if err := s.db.QueryRow(ctx, querySizes, table).Scan(&heap, &index); err != nil {
		return err
	}
	m.sizes[name+" heap"] = append(m.sizes[name+" heap"], heap/float64(n))
	m.sizes[name+" index"] = append(m.sizes[name+" index"], index/float64(n))
	return nil
}

// lowLoad measures an idle relay, and a chain with so little load that nothing waits for a core.
func (m *costsMeasured) lowLoad(ctx context.Context, s *stack, o options, rep *report, turn int) error {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryEmptyInbox, queryCheckpoint); err != nil {
		return err
	}
	g, err := m.stage(ctx, s, rep, turn, costIdle, topic,
		job{Pumps: o.pumps, Stage: stageJob{Relay: true, Seconds: o.costSeconds}})
	if err != nil {
		return err
	}
	if turn > 0 {
		m.samples[costIdle] = append(m.samples[costIdle], plan.Sample{Size: 1, Cost: costOf(g, g.Seconds)})
	}
	calm := stageJob{
		Append: true, Relay: true, Consume: true, Rate: 500, PerAppend: steadyAppend, Producers: 1,
		Seconds: o.costSeconds,
	}
	if g, err = m.stage(ctx, s, rep, turn, costCalm, topic, job{Pumps: o.pumps, Stage: calm}); err == nil && turn > 0 {
		m.calm = append(m.calm, g)
	}
	return err
}

// costs splits the medians of all turns into the costs of a batch and of an event.
func (m *costsMeasured) costs() plan.Costs {
	of := func(name string) plan.Sample { return plan.Median(m.samples[name]) }
	mid := func(all []float64) float64 { v, _, _ := page.Spread(all); return v }
	c := plan.Costs{
		Append:     plan.Fit(of(costAppendSmall), of(costAppendLarge)),
		Relay:      plan.Fit(of(costRelaySmall), of(costRelayLarge)),
		ClaimShare: mid(m.claim) / max(mid(m.claim)+mid(m.settle), 1e-9),
		Idle:       of(costIdle).Cost,
		Sizes: plan.Sizes{
			OutboxHeap: mid(m.sizes["outbox heap"]), OutboxIndex: mid(m.sizes["outbox index"]),
			InboxHeap: mid(m.sizes["inbox heap"]), InboxIndex: mid(m.sizes["inbox index"]), Kafka: mid(m.kafkaStored),
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
	mid := func(all []float64) float64 { v, _, _ := page.Spread(all); return v }
	return plan.Waits{
		Append: mid(w.append), Claim: mid(w.claim), Publish: mid(w.publish), Settle: mid(w.settle),
		Handle: mid(w.handle),
	}
}
