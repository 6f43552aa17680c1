package relay

import "time"

// Observer is a set of callbacks; nil ones are skipped. They run on the relay's goroutines: return at once.
type Observer struct {
	// Claimed: a claim of n events is committed and durable; discarded of its journalled events no longer exist.
	Claimed func(n, discarded int, took time.Duration)
	// Published: the publisher has acked n events of a claim; attempts is 1 if none had to be sent twice.
	Published func(n, attempts int, took time.Duration)
	// Due: n scheduled events have come due and stand in the outbox now.
	Due func(n int)
	// Settled: n published events are deleted from the outbox; discarded of them were already deleted by another
	// session.
	Settled func(n, discarded int, took time.Duration)
	// PublishFailed: an attempt left n events without an ack. They will be sent again.
	PublishFailed func(n int, err error)
	// LaneTaken and LaneLeft: the relay begins and ceases to own a lane, under one fence. lost is true if another relay
	// took it, if its owner is unknown, and if the relay takes it back at once under a higher fence.
	LaneTaken func(lane int16, fence int64)
	LaneLeft  func(lane int16, lost bool)
	// Closed and Reopened: holding begins and ends for a partition, or with -1 for a topic as a whole.
	Closed   func(topic string, partition int32, err error)
	Reopened func(topic string, partition int32, took time.Duration)
	// Held: n events were moved to outbox_held, to wait for a partition or (-1) for the topic as a whole.
	Held func(topic string, partition int32, n int)
	// Drained: n of the settled events came from outbox_held.
	Drained func(n int)
	// Parked: n events were certainly refused, or are behind one that was, and are parked.
	Parked func(n int)
	// Behind: n new events of parked keys were put behind them.
	Behind func(n int)
	// Released: n of the settled events came from outbox_parked.
	Released func(n int)
	// BelowFloor: an event was found below a floor (Config.RescanEvery). It is published; its order is not certain.
	// This is a bug, unless somebody has changed the sequence or the publication.
	BelowFloor func(lane int16)
	// Outage: Postgres or Kafka ("postgres", "kafka") went away (err != nil) or came back (err == nil).
	Outage func(what string, err error)
}
