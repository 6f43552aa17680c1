package plan

import "math"

// Assumptions are what one machine cannot measure. Every table says which it was made with.
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

// Limit is a thing that ends a rate, and at how many events a second it does on one of its kind.
type Limit struct {
	What string
	Rate float64
}

// Need is what a rate needs. CPU in cores that are busy; bytes a second; counts of whole things.
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
	OutboxFull, InboxFull                        []Limit // what ends one outbox database and one inbox database
}

// For computes what a rate needs. CPU grows with the rate, and a little less with larger batches: that is all that the
// model knows of Postgres on more cores than the costs were measured on.
func For(c Costs, a Assumptions, rate float64) Need {
	n := Need{Rate: rate, Outboxes: 1}
	n.sizePartitions(c, a)
	for range 20 { // more databases make smaller claims, which cost more
		before := n.Outboxes
		n.outbox(c, a)
		if n.Outboxes = max(before, count(rate, lowest(n.OutboxFull))); n.Outboxes == before {
			break
		}
	}
	n.inbox(c, a)
	n.sizes(c, a)
	return n
}

// count is how many of a thing that carries so much a rate needs.
func count(rate, each float64) int { return int(math.Ceil(rate/each - 1e-9)) }

func lowest(all []Limit) float64 {
	low := math.Inf(1)
	for _, l := range all {
		low = min(low, l.Rate)
	}
	return low
}

// First is the limit that is met first.
func First(all []Limit) Limit {
	for _, l := range all {
		if l.Rate == lowest(all) {
			return l
		}
	}
	return Limit{}
}

// PumpRate is what one pump carries at most: full claims, one after the other, each step on a core of its own.
func PumpRate(c Costs) float64 {
	return claimEvents / (c.Relay.Of(claimEvents).Seconds() + (c.Waits.Claim+c.Waits.Publish+c.Waits.Settle)*1e-3)
}

// PartitionRate is what one partition's consumer carries at most, in full batches.
func PartitionRate(c Costs) float64 {
	return inboxBatch / (c.Inbox.Of(inboxBatch).Seconds() + c.Fetch.Batch.Seconds() + c.Waits.Handle*1e-3)
}

func (n *Need) sizePartitions(c Costs, a Assumptions) {
	n.Partitions = max(8, count(n.Rate, PartitionRate(c)*a.Use))
	// What arrives between two looks of the relay comes as one batch, until a transaction is full.
	n.InboxSize = clamp(n.Rate/float64(n.Partitions)*(probeEvery+gatherFor), 1, inboxBatch)
}

// outbox computes what one of the databases carries, with the pumps that it needs.
func (n *Need) outbox(c Costs, a Assumptions) {
	rate := n.Rate / float64(n.Outboxes)
	perPump := PumpRate(c) * a.Use
	pumps := min(max(2*relayPumps, count(rate, perPump)), laneCount)
	n.ClaimSize = clamp(rate*probeEvery/float64(pumps), 1, claimEvents)
	n.Pumps = pumps * n.Outboxes
	n.Relays = (pumps + relayPumps - 1) / relayPumps * n.Outboxes
	append1, relay := c.Append.Per(a.PerAppend), c.Relay.Per(n.ClaimSize)
	idle := c.Idle.Postgres * 1e-6 * float64(n.Relays)
	n.Producers, n.Append = cores(append1.Client, n.Rate), cores(append1.Postgres, n.Rate)
	n.Claim, n.Settle = cores(relay.Postgres*c.ClaimShare, n.Rate)+idle, cores(relay.Postgres*(1-c.ClaimShare), n.Rate)
	n.Relay = cores(relay.Client, n.Rate) + c.Idle.Client*1e-6*float64(n.Relays)
	n.OutboxWAL = (append1.WAL + relay.WAL) * n.Rate
	n.OutboxNet = (append1.DatabaseNet + relay.DatabaseNet) * n.Rate
	n.OutboxFull = []Limit{
		{"Postgres' CPU", full(n.Append+n.Claim+n.Settle, a.DatabaseCores*a.Use, n.Rate)},
		{"its log", full(n.OutboxWAL, a.WALRate*a.Use, n.Rate)},
		{"its network", full(n.OutboxNet, a.NetRate*a.Use, n.Rate)},
		{"32 lanes", laneCount * perPump},
	}
}

func (n *Need) inbox(c Costs, a Assumptions) {
	one, fetch, relay := c.Inbox.Per(n.InboxSize), c.Fetch.Per(n.InboxSize), c.Relay.Per(n.ClaimSize)
	n.Inbox = cores(one.Postgres, n.Rate)
	n.Workers = cores(one.Client+fetch.Client, n.Rate)
	// A follower fetches and writes what the leader has taken; that costs it about what producing costs the leader.
	n.Kafka = cores(relay.Kafka*a.Replicas+one.Kafka+fetch.Kafka, n.Rate)
	n.InboxWAL, n.InboxNet = one.WAL*n.Rate, one.DatabaseNet*n.Rate
	n.KafkaNet = (relay.KafkaNet + one.KafkaNet + fetch.KafkaNet) * n.Rate
	n.ReplicasNet = relay.KafkaNet * (a.Replicas - 1) * n.Rate
	n.InboxFull = []Limit{
		{"Postgres' CPU", full(n.Inbox, a.DatabaseCores*a.Use, n.Rate)},
		{"its log", full(n.InboxWAL, a.WALRate*a.Use, n.Rate)},
		{"its network", full(n.InboxNet, a.NetRate*a.Use, n.Rate)},
	}
	n.InboxDatabases = count(n.Rate, lowest(n.InboxFull))
	n.Brokers = max(3, count(n.Kafka, a.BrokerCores*a.Use), count(n.KafkaNet+n.ReplicasNet*2, a.NetRate*a.Use))
}

func (n *Need) sizes(c Costs, a Assumptions) {
	const day = 86400
	n.RelayConns = n.Pumps + 2*n.Relays
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

// cores is how many a rate keeps busy at so many microseconds an event.
func cores(us, rate float64) float64 { return us * 1e-6 * rate }

// full is the rate at which something that grows with the rate reaches what there is of it.
func full(used, room, rate float64) float64 {
	if used <= 0 {
		return math.Inf(1)
	}
	return rate * room / used
}

func clamp(v, low, high float64) float64 { return min(max(v, low), high) }
