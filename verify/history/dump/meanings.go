package dump

import (
	"maps"
	"slices"

	"github.com/effectonce/effectonce/internal/audit"
)

// meaning is what an action of an operator does to events.
type meaning int

const (
	nothing         meaning = iota // each stays as it is, and is published and applied once
	mends                          // what was refused, or could not be applied, may succeed
	discards                       // they are gone: the event, or those of the key
	discardsOfTopic                // likewise; without an id and a key so many of the topic
)

// meanings has each action of the audits. That of a consumer's discards is in the inbox's tables.
var meanings = map[string]meaning{
	audit.AcceptCluster: nothing, audit.AcceptNumbering: nothing, audit.AcceptPartitions: nothing,
	audit.Acknowledge:        nothing,
	audit.CancelAllScheduled: discardsOfTopic, audit.CancelScheduled: discards,
	audit.DiscardEvent: discards, audit.DiscardHeld: discardsOfTopic, audit.DiscardKey: discards,
	audit.EditParked: mends, audit.Fence: nothing, audit.ForgetOffsets: nothing, audit.MoveConsumer: nothing,
	audit.PauseTopic: nothing, audit.ReleaseEvent: mends, audit.ReleaseKey: nothing,
	audit.Replay: nothing, audit.ReplayEnded: nothing,
	audit.ResumePartition: nothing, audit.ResumeTopic: nothing, audit.RetireConsumer: nothing,
	audit.RevealParked: nothing, audit.SkipRecords: nothing,
}

// actions returns those with one of these meanings.
func actions(of ...meaning) []string {
	return slices.DeleteFunc(slices.Collect(maps.Keys(meanings)), func(action string) bool {
		return !slices.Contains(of, meanings[action])
	})
}
