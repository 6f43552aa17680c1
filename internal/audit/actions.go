package audit

// The actions of both audits, by the names that stand there. [Person.Act] refuses others; verify/history knows what
// each of them does to events.
const (
	AcceptCluster      = "accept cluster"
	AcceptNumbering    = "accept numbering"
	AcceptPartitions   = "accept partitions"
	Acknowledge        = "acknowledge finding"
	CancelAllScheduled = "cancel all scheduled"
	CancelScheduled    = "cancel scheduled"
	DiscardEvent       = "discard event"
	DiscardHeld        = "discard held"
	DiscardKey         = "discard key"
	EditParked         = "edit parked"
	Fence              = "fence"
	ForgetOffsets      = "forget offsets"
	MoveConsumer       = "move consumer"
	PauseTopic         = "pause topic"
	ReleaseEvent       = "release event"
	ReleaseKey         = "release key"
	Replay             = "replay"
	ReplayEnded        = "replay ended"
	ResumePartition    = "resume partition"
	ResumeTopic        = "resume topic"
	RetireConsumer     = "retire consumer"
	RevealParked       = "reveal parked"
	SkipRecords        = "skip records"
)

// Actions returns all of them.
func Actions() []string {
	return []string{
		AcceptCluster, AcceptNumbering, AcceptPartitions, Acknowledge, CancelAllScheduled, CancelScheduled,
		DiscardEvent, DiscardHeld, DiscardKey, EditParked, Fence, ForgetOffsets, MoveConsumer, PauseTopic,
		ReleaseEvent, ReleaseKey, Replay, ReplayEnded, ResumePartition, ResumeTopic, RetireConsumer,
		RevealParked, SkipRecords,
	}
}
