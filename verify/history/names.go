package history

// Name identifies a kind of violation.
type Name string

// Names of violations. Kinds has their invariants and meanings.
const (
	Lost                 Name = "lost"
	Unapplied            Name = "unapplied"
	OKAppendLost         Name = "ok-append-lost"
	AckedRecordMissing   Name = "acked-record-missing"
	ArchivedUnpublished  Name = "archived-unpublished"
	ParkedWithoutReason  Name = "parked-without-reason"
	InnocentParked       Name = "innocent-parked"
	Phantom              Name = "phantom"
	PhantomRow           Name = "phantom-row"
	PhantomEffect        Name = "phantom-effect"
	FailedCommitted      Name = "failed-append-committed"
	Unrecorded           Name = "unrecorded"
	Altered              Name = "altered"
	SecondEffect         Name = "second-effect"
	EffectMissing        Name = "effect-missing"
	EffectWithoutRow     Name = "effect-without-row"
	EffectOfDiscarded    Name = "effect-of-discarded"
	EffectOfSkipped      Name = "effect-of-skipped"
	ParkedAndDecided     Name = "parked-and-decided"
	Inversion            Name = "inversion"
	KeyMoved             Name = "key-moved"
	AppliedOutOfOrder    Name = "applied-out-of-order"
	NumberReused         Name = "number-reused"
	SequenceWentBack     Name = "sequence-went-back"
	Renumbered           Name = "renumbered"
	StaleIncarnation     Name = "stale-incarnation"
	FenceShared          Name = "fence-shared"
	FenceWentBack        Name = "fence-went-back"
	BelowFloor           Name = "below-floor"
	OffsetPassedWork     Name = "offset-passed-work"
	OffsetBeyondLog      Name = "offset-beyond-log"
	Undrained            Name = "undrained"
	OpenClaim            Name = "open-claim"
	StillHeld            Name = "still-held"
	StuckKey             Name = "stuck-key"
	OverdueLease         Name = "overdue-lease"
	Lag                  Name = "lag"
	HaltedPartition      Name = "halted-partition"
	DroppedInsideWindow  Name = "dropped-inside-window"
	DedupForgotten       Name = "dedup-forgotten"
	RetentionUnpublished Name = "retention-removed-unpublished"
	SecretLeaked         Name = "secret-leaked"
)

// KindOf describes a kind of violation.
type KindOf struct {
	Name      Name
	Invariant string
	Meaning   string
}

// Kinds lists every violation that Check and Leaks can find. I6, replies to one idempotency key, is tested in
// idempotency.
func Kinds() []KindOf {
	return []KindOf{
		{Lost, "I1", "a committed event is neither in Kafka nor scheduled, held, parked or discarded"},
		{Unapplied, "I1", "a published event is neither applied nor parked at a consumer of its topic"},
		{OKAppendLost, "I1", "a producer was told that its COMMIT succeeded, and its business row is not there"},
		{AckedRecordMissing, "I1", "a relay was told that a record is written, and it is not there"},
		{ArchivedUnpublished, "I1", "an event is in the archive of what was published, and not in Kafka"},
		{ParkedWithoutReason, "I1", "a parked or quarantined event says no reason"},
		{InnocentParked, "I1", "an event was refused although nothing is wrong with it"},
		{Phantom, "I2", "a record in Kafka is of an event that was never committed"},
		{PhantomRow, "I2", "an outbox row is there without the business row of its transaction"},
		{PhantomEffect, "I2", "an effect is of an event that was never committed"},
		{FailedCommitted, "I2", "a producer was told for certain that its transaction failed, and it is committed"},
		{Unrecorded, "I2", "a business row that no producer wrote down before its COMMIT: the history cannot be " +
			"believed"},
		{Altered, "I2", "a record or an effect is not what was appended under its id"},
		{SecondEffect, "I3", "an event, or a business key, had its effect twice"},
		{EffectMissing, "I1", "the inbox says that an event is done, and its effect is not there"},
		{EffectWithoutRow, "I3", "an effect is there without the inbox row of its transaction: it would run again"},
		{EffectOfDiscarded, "I3", "an event that was discarded had its effect"},
		{EffectOfSkipped, "I3", "an effect that returned Skip was kept"},
		{ParkedAndDecided, "I3", "an event waits in the inbox although it was decided"},
		{Inversion, "I4", "first occurrences of a key in Kafka are not in causal order"},
		{KeyMoved, "I4", "a key is in two partitions of a topic whose partition count did not change"},
		{AppliedOutOfOrder, "I4", "effects of a key are not in causal order"},
		{NumberReused, "I5", "two events were sent under one number of a lane"},
		{SequenceWentBack, "I5", "first occurrences of a lane's numbers went back in a partition"},
		{Renumbered, "I5", "an event was sent again under another number of the same incarnation, and does not say " +
			"that it may be there already"},
		{StaleIncarnation, "I5", "an event first occurs under an old incarnation, after a newer one"},
		{FenceShared, "I5", "two relays took a lane under one fence"},
		{FenceWentBack, "I5", "a lane's fence is lower than one under which it was taken"},
		{BelowFloor, "I5", "a relay found an event where its floor said that none can be"},
		{OffsetPassedWork, "I7", "a committed offset is after an event that is not decided"},
		{OffsetBeyondLog, "I7", "a committed offset is beyond the end of the log"},
		{Undrained, "I8", "events wait in the outbox after the drain"},
		{OpenClaim, "I8", "a journal entry is open after the drain"},
		{StillHeld, "I8", "events are held after every partition answers again"},
		{StuckKey, "I8", "a key's mark holds nothing, or its release does not end"},
		{OverdueLease, "I8", "a lane has an owner whose lease has run out"},
		{Lag, "I8", "a group has not committed up to the end of the log"},
		{HaltedPartition, "I8", "a partition waits for a person"},
		{DroppedInsideWindow, "I9", "a day of the inbox was dropped inside a consumer's window"},
		{DedupForgotten, "I9", "an event was decided, and inside the window nothing knows of it"},
		{RetentionUnpublished, "I9", "a committed event is gone, and no relay ever handed it over"},
		{SecretLeaked, "I10", "a secret stands in a log, a metric or an error"},
	}
}
