package plan

import "math"

// Assumptions are values that cannot be measured on one machine. Every table lists its assumptions.
type Assumptions struct {
	PerAppend     float64 // events that a producer appends in one transaction
	DatabaseCores float64
	BrokerCores   float64
	Use           float64 // the part of a thing that may be used, for failures and busy hours
	WALRate       float64 // bytes a second of log that a database's disk takes, written and replicated
	NetRate       float64 // bytes a second that a machine's network takes, both directions together
	Replicas      float64 // of a partition in Kafka
	KafkaDays     float64 // of retention
	WindowDays    float64 // that an inbox remembers
	Outage        float64 // seconds that Kafka may be away
	HandleUsed    float64 // seconds that a producer's transaction holds its connection, besides what appending costs
}

// DefaultAssumptions are a database server of 16 cores, a disk that takes 300 MB/s of log, 10 Gbit/s, three replicas.
func DefaultAssumptions() Assumptions {
	return Assumptions{
		PerAppend: 1, DatabaseCores: 16, BrokerCores: 8, Use: 0.6, WALRate: 300e6, NetRate: 1.25e9, Replicas: 3,
		KafkaDays: 7, WindowDays: 14, Outage: 3600, HandleUsed: 0.005,
	}
}

// laneCount is how many lanes an outbox has, and so how many pumps can work on one at a time.
const laneCount = 32

// relayPumps is how many pumps a relay has by default.
const relayPumps = 2

// Limit is a resource that bounds the rate, and the rate at which one instance of it is full.
type Limit struct {
	What string
	Rate float64
}

// Need is the resources for a rate: CPU in busy cores, bytes per second, numbers of instances.
type Need struct {
	Rate                                         float64
	ClaimSize, InboxSize                         float64 // events of one claim and of one transaction of the inbox
	Producers, Append, Claim, Settle             float64 // producers' client side, and Postgres
	Relay, Kafka, Workers, Inbox                 float64
	Outboxes, InboxDatabases, Brokers            int
	Relays, Pumps, Partitions                    int
	RelayConns, ProducerConns, WorkerConns       int
	OutboxWAL, InboxWAL                          float64
	OutboxNet, InboxNet, KafkaNet, ReplicasNet   float64
	Backlog                                      float64 // bytes in the outbox after an outage of Kafka
	KafkaDisk, InboxWeek, InboxWindow, WALPerDay float64 // bytes
	OutboxFullest, InboxFullest                  Fullness
}

// Fullness is the resource of a database that is full first, and its used share.
type Fullness struct {
	What string
	Part float64
}

// For calculates the resources for a rate. CPU grows with the rate, and less with larger batches; the model has no
// other effects of more cores than the costs were measured on.
func For(c Costs, a Assumptions, rate float64) Need {
	n := Need{Rate: rate}
	n.Outboxes, n.InboxDatabases = count(rate, lowest(OutboxEnds(c, a))), count(rate, lowest(InboxEnds(c, a)))
	n.partitions(c, a)
	n.outbox(c, a)
	n.inbox(c, a)
	n.OutboxFullest, n.InboxFullest = n.fullest(n.outboxLimits(c, a), n.Outboxes),
		n.fullest(n.inboxLimits(a), n.InboxDatabases)
	n.sizes(c, a)
	return n
}

func (n *Need) fullest(limits []Limit, databases int) Fullness {
	first := First(limits)
	return Fullness{first.What, n.Rate / float64(databases) / first.Rate}
}

// OutboxEnds returns the rates at which the resources of one outbox database are full, with the claim size at that
// rate.
func OutboxEnds(c Costs, a Assumptions) []Limit {
	n := Need{Rate: 100_000, Outboxes: 1}
	for range 100 { // each step changes the size of the claims a little less
		n.partitions(c, a)
		n.outbox(c, a)
		n.Rate = lowest(n.outboxLimits(c, a))
	}
	return n.outboxLimits(c, a)
}

// InboxEnds returns the same for one inbox database, with full batches.
func InboxEnds(c Costs, a Assumptions) []Limit {
	n := Need{Rate: 100_000, Outboxes: 1}
	n.partitions(c, a)
	n.outbox(c, a)
	n.InboxSize = inboxBatch
	n.inbox(c, a)
	return n.inboxLimits(a)
}

// count returns how many instances with a capacity of each a rate needs.
func count(rate, each float64) int { return int(math.Ceil(rate/each - 1e-9)) }

func lowest(all []Limit) float64 {
	low := math.Inf(1)
	for _, l := range all {
		low = min(low, l.Rate)
	}
	return low
}

// First returns the lowest limit.
func First(all []Limit) Limit {
	for _, l := range all {
		if l.Rate == lowest(all) {
			return l
		}
	}
	return Limit{}
}

// PumpRate is the highest rate of one pump: full claims, one after the other, each step on its own core.
func PumpRate(c Costs) float64 {
	return claimEvents / (c.Relay.Of(claimEvents).Seconds() + (c.Waits.Claim+c.Waits.Publish+c.Waits.Settle)*1e-3)
}

// PartitionRate is the highest rate of one partition's consumer, with full batches.
func PartitionRate(c Costs) float64 {
	return inboxBatch / (c.Inbox.Of(inboxBatch).Seconds() + c.Fetch.Batch.Seconds() + c.Waits.Handle*1e-3)
}

// partitions gives each outbox database its own topic: a claim over the partitions of all databases would make requests
// of a few records each.
func (n *Need) partitions(c Costs, a Assumptions) {
	n.Partitions = max(measuredPartitions, count(n.Rate/float64(n.Outboxes), PartitionRate(c)*a.Use)) * n.Outboxes
	// Events between two polls of the relay form one batch, up to a full transaction.
	n.InboxSize = clamp(n.Rate/float64(n.Partitions)*(probeEvery+gatherFor), 1, inboxBatch)
}

// outbox calculates the load of the outbox databases, with the pumps that they need.
func (n *Need) outbox(c Costs, a Assumptions) {
	rate := n.Rate / float64(n.Outboxes)
	pumps := min(max(2*relayPumps, count(rate, PumpRate(c)*a.Use)), laneCount)
	n.ClaimSize = clamp(rate*probeEvery/float64(pumps), 1, claimEvents)
	n.Relays = (pumps + relayPumps - 1) / relayPumps * n.Outboxes
	n.Pumps = n.Relays * relayPumps
	one, relay, idle := c.Append.Per(a.PerAppend), c.relayed(n.ClaimSize, n.Partitions/n.Outboxes), c.Idle
	relays := float64(n.Relays)
	n.Producers, n.Append = cores(one.Client, n.Rate), cores(one.Postgres, n.Rate)
	n.Claim = cores(relay.Postgres*c.ClaimShare, n.Rate) + cores(idle.Postgres, relays)
	n.Settle = cores(relay.Postgres*(1-c.ClaimShare), n.Rate)
	n.Relay = cores(relay.Client, n.Rate) + cores(idle.Client, relays)
	n.OutboxWAL = (one.WAL + relay.WAL) * n.Rate
	n.OutboxNet = (one.DatabaseNet+relay.DatabaseNet)*n.Rate + idle.DatabaseNet*relays
}

// outboxLimits returns the limits of one outbox database, at the current cost of an event.
func (n *Need) outboxLimits(c Costs, a Assumptions) []Limit {
	return []Limit{
		{"Postgres' CPU", full(n.Append+n.Claim+n.Settle, a.DatabaseCores*a.Use, n.Rate)},
		{"its log", full(n.OutboxWAL, a.WALRate*a.Use, n.Rate)},
		{"its network", full(n.OutboxNet, a.NetRate*a.Use, n.Rate)},
		{"32 lanes", laneCount * PumpRate(c) * a.Use},
	}
}

func (n *Need) inbox(c Costs, a Assumptions) {
	relay := c.relayed(n.ClaimSize, n.Partitions/n.Outboxes)
	one := c.Inbox.Per(n.InboxSize).plus(c.Fetch.Per(clamp(n.ClaimSize/float64(n.Partitions/n.Outboxes), 1,
		n.InboxSize)), 1)
	n.Inbox, n.Workers = cores(one.Postgres, n.Rate), cores(one.Client, n.Rate)
	// A follower's fetches and writes cost it about as much as produce requests cost the leader.
	n.Kafka = cores(relay.Kafka*a.Replicas+one.Kafka, n.Rate)
	n.InboxWAL, n.InboxNet = one.WAL*n.Rate, one.DatabaseNet*n.Rate
	n.KafkaNet = (relay.KafkaNet + one.KafkaNet) * n.Rate
	n.ReplicasNet = relay.KafkaNet * (a.Replicas - 1) * n.Rate
	n.Brokers = max(3, count(n.Kafka, a.BrokerCores*a.Use), count(n.KafkaNet+n.ReplicasNet*2, a.NetRate*a.Use))
}

func (n *Need) inboxLimits(a Assumptions) []Limit {
	return []Limit{
		{"Postgres' CPU", full(n.Inbox, a.DatabaseCores*a.Use, n.Rate)},
		{"its log", full(n.InboxWAL, a.WALRate*a.Use, n.Rate)},
		{"its network", full(n.InboxNet, a.NetRate*a.Use, n.Rate)},
	}
}

func (n *Need) sizes(c Costs, a Assumptions) {
	const day = 86400
	n.RelayConns = n.Pumps + 3*n.Relays
	// Little's law: as many transactions are open as begin a second, times how long each is.
	open := c.Append.Of(a.PerAppend).Seconds() + c.Waits.Append*1e-3 + a.HandleUsed
	n.ProducerConns = max(1, int(math.Ceil(n.Rate/a.PerAppend*open)))
	n.WorkerConns = max(1, int(math.Ceil(n.Rate/PartitionRate(c)*1.5)))
	n.Backlog = (c.Sizes.OutboxHeap + c.Sizes.OutboxIndex) * n.Rate * a.Outage
	n.KafkaDisk = c.Sizes.Kafka * n.Rate * day * a.KafkaDays * a.Replicas
	n.InboxWeek = (c.Sizes.InboxHeap + c.Sizes.InboxIndex) * n.Rate * day * 7
	n.InboxWindow = n.InboxWeek / 7 * a.WindowDays
	n.WALPerDay = (n.OutboxWAL + n.InboxWAL) * day
}

// cores returns the number of busy cores at a rate and a cost per event in microseconds.
func cores(us, rate float64) float64 { return us * 1e-6 * rate }

// full returns the rate at which a use that grows with the rate reaches the capacity.
func full(used, room, rate float64) float64 {
	if used <= 0 {
		return math.Inf(1)
	}
	return rate * room / used
}

func clamp(v, low, high float64) float64 { return min(max(v, low), high) }
