//go:build !race

package relay

// The model of the relay: all states that a few events, relays, partitions and faults can lead to, enumerated by
// internal/testenv/explore. Its relays run the production code: each step restores an engine's memory from the state,
// calls the function that an actor calls (ClaimLanes, Attempt and Finish of the cycle, Keeper.Beat, Prober.Probe,
// Finder.Step, Reviver.Try), and stores the memory again. Postgres is replaced by a small database with one operation
// for each statement of queries*.go (model_ops_*_test.go); TestModelIsPostgres compares them with the real statements
// on a real server. Kafka is replaced by a log with requests that may be late, and two consumers: one by ids, one by
// numbers.

// Bounds of a world. Everything is an array, so that states are comparable.
const (
	modelEvents  = 4
	modelLanes   = 2
	modelRelays  = 2
	modelOwners  = 4 // a restarted relay is another owner
	modelKeys    = 4
	modelDelayed = 2
	modelEpochs  = 3
	modelPlaces  = 6 // two topics: each as a whole, and with two partitions
	modelEntries = 2 // open ones of a lane; two are already a violation
)

// Tables that an event's row may be in.
const (
	nowhere = iota // not committed, or deleted
	inEvent
	inHeld
	inParked
	inScheduled
)

// modelRow is an event's row in one of the tables.
type modelRow struct {
	place                         uint8
	id                            uint8
	seq                           int32
	partition                     int8
	sent, maybe, alone, releasing bool
	due                           bool // scheduled, and due
}

// modelEntry is a row of outbox_claim.
type modelEntry struct {
	first int32 // 0: none
	n     uint8
	ids   [modelEvents]uint8
	seqs  [modelEvents]int32
}

type modelLane struct {
	owner    uint8 // 0: free
	expired  bool  // the lease in its own row
	fence    uint8
	reserved int32
	journal  [modelEntries]modelEntry // by first
}

// Marks of keys.
const (
	unmarked = iota
	markParked
	markReleasing
)

// Members.
const (
	noMember = iota
	memberAlive
	memberExpired
)

// modelDB is the state of the database's tables.
type modelDB struct {
	rows        [modelEvents]modelRow
	lanes       [modelLanes]modelLane
	marks       [modelKeys]uint8
	members     [modelOwners + 1]uint8 // by owner
	paused      uint8                  // topics, as bits
	last        uint8                  // of the sequence of ids
	incarnation uint8
	system      uint8 // as outbox_meta records it
}

// Transactions of producers.
const (
	txNone = iota
	txOpen // an id is drawn
	txDone
	txLost // undone by a crash or a failover
)

// modelOwned is laneState.
type modelOwned struct {
	has                                                   bool
	fence                                                 uint8
	next, end, settled                                    int32
	floor, reach                                          uint8
	stale, fresh, due, ready, woken, busy, doubt, leaving bool
	parked, releasing                                     bool
	groups                                                uint8 // places, as bits
	turn                                                  uint8
}

// modelItem is an event of a claim, with its delivery state.
type modelItem struct {
	ev, id, from, fate                         uint8
	seq                                        int32
	partition                                  int8
	sent, alone, behind, first, maybe, refused bool
}

// modelClaim is a claim between take and finish.
type modelClaim struct {
	active    bool
	epoch     uint8
	paused    uint8
	forbidden uint8 // topics that were paused before it began
	lanes     [modelLanes]struct {
		has, full, behind, stale bool
		fence, floorAfter, sure  uint8
		work                     uint8
		first                    int32
		groups                   uint8
	}
	n     uint8
	items [modelEvents]modelItem
}

// Connections of a relay, as bits of modelRelay.cut.
const (
	pumpSession = iota
	keeperSession
	proberSession
	reviverSession
	floorSession
)

// modelRelay is the memory of one relay.
type modelRelay struct {
	owner uint8 // 0: it is down
	cut   uint8 // sessions whose connection is lost, and which have not noticed
	lanes [modelLanes]modelOwned
	ids   uint8 // the numbering that the floors are in; 0: none
	epoch uint8 // 1 + the incarnation; 0: none
	// The id up to which all are decided, as the pumps know it; reached: but for the transactions of except.
	known                  uint8
	reached, except, limit uint8
	since                  [modelEvents]uint8 // of each of except: reached when it was excepted
	closed                 uint8              // places
	paused                 uint8              // topics
	claim                  modelClaim
	floor                  struct {
		ids, reached, hi, waits, except uint8 // waits: events whose transactions are waited for
	}
}

// modelRequest is a produce request that is still in flight although its sender has given up.
type modelRequest struct {
	n     uint8
	epoch uint8
	items [modelEvents]struct {
		ev    uint8
		seq   int32
		maybe bool
	}
}

// modelBudget counts the faults and operators' actions that may still happen.
type modelBudget struct {
	expire, crash, lost, ghost, fail, lostAck, delay, away, topic, refuse, discard, pause, dbCrash, failover, restore,
	stop, late uint8
}

// modelState is the whole world.
type modelState struct {
	db, disk modelDB // the visible tables, and those that survive a crash or a failover
	server   uint8   // the server's system and timeline
	tx       [modelEvents]uint8
	diskTx   [modelEvents]uint8 // as of disk
	drawn    [modelEvents]uint8 // ids of open transactions
	relays   [modelRelays]modelRelay
	net      [modelDelayed]modelRequest
	ghost    uint16 // the number of a transaction in the model's table that was sent and may still run; 0: none
	stale    uint8  // with the bug oneStatement: 1 + the relay whose claim has read, and waits for a lane
	snap     uint8  // the events that it has read
	budget   modelBudget

	inLog     uint8              // by ids: at least once
	applied   [modelEpochs]uint8 // by numbers, in each incarnation
	excused   uint8              // released with ce_maybe: the consumer by numbers quarantines it
	discarded uint8
	lost      uint8 // committed events that a failover has lost, as it may
	marks     [modelEpochs][modelLanes][modelPlaces]int32

	cursor [modelLanes]uint8 // of the bug cursor
	unmark uint8             // of the bug blindUnmark: 1 + the mark
	moved  uint8             // scheduled events that were moved to the outbox

	bad uint8 // 1 + index into the model's list of violations
}
