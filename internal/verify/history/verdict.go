package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Verdict is what Check says about a run.
type Verdict struct {
	Counts Counts `json:"counts"`
	// Violations are those that nothing allows, by invariant. None: everything held.
	Violations []Violation `json:"violations"`
	// Allowed are those that the run's faults excuse (Allowed.Names), counted all the same.
	Allowed []Violation `json:"allowed"`
}

// OK reports whether nothing was violated.
func (v Verdict) OK() bool { return len(v.Violations) == 0 }

// Count is how often a violation was found, allowed or not.
func (v Verdict) Count(name Name) int {
	for _, one := range slices.Concat(v.Violations, v.Allowed) {
		if one.Name == name {
			return one.Count
		}
	}
	return 0
}

// Violation is one kind of violation, with its first examples.
type Violation struct {
	Invariant string    `json:"invariant"`
	Name      Name      `json:"name"`
	Count     int       `json:"count"`
	Reason    string    `json:"reason,omitempty"` // why it is allowed
	Examples  []Example `json:"examples"`
}

// Example is one violation, told.
type Example struct {
	What  string      `json:"what"`
	IDs   []uuid.UUID `json:"ids,omitempty"`
	Story []string    `json:"story,omitempty"` // who did what with these events, with the faults around it
}

// Counts say how much a run did.
type Counts struct {
	Events       int `json:"events"`        // committed business rows
	Unknown      int `json:"unknown"`       // appends of unknown outcome, and of them
	UnknownThere int `json:"unknown_there"` // those that were committed
	RolledBack   int `json:"rolled_back"`   // appends that failed for certain
	Records      int `json:"records"`       // in Kafka
	Duplicates   int `json:"duplicates"`    // records whose id occurred before
	Effects      int `json:"effects"`
	Parked       int `json:"parked"`    // events that wait in the outbox
	Held         int `json:"held"`      //
	Discarded    int `json:"discarded"` // by a person, in the outbox, and in no log
	InboxParked  int `json:"inbox_parked"`
	Quarantined  int `json:"quarantined"`
	InboxDropped int `json:"inbox_discarded"`
	Audits       int `json:"audits"`        // records that audits looked up
	OffsetsBack  int `json:"offsets_back"`  // audits that found a group's offset lower than the one before
	Faults       int `json:"faults"`        // that were begun
	Processes    int `json:"processes"`     // starts
	Torn         int `json:"torn"`          // histories whose last line is torn
	LanesTaken   int `json:"lanes_taken"`   //
	Attempts     int `json:"attempts"`      // events handed to the publisher, repeats included
	UnknownSends int `json:"unknown_sends"` // of them without an answer
	RefusedSends int `json:"refused_sends"` // of them refused for certain
	EffectRuns   int `json:"effect_runs"`   // rolled back ones included
	LedgerRows   int `json:"ledger_rows"`   //
	Scheduled    int `json:"still_to_come"` // events whose time has not come
	Incarnations int `json:"incarnations"`  // numberings in the log
	// events that the log has under more than one number: released, replayed, or fenced
	FirstAgain int `json:"several_number"`
}

// String tells the verdict: the counts, and each violation with its examples and their stories.
func (v Verdict) String() string {
	var b strings.Builder
	c := v.Counts
	fmt.Fprintf(&b, "%d events committed (%d of %d unknown appends, %d rolled back), %d records (%d duplicates), %d "+
		"effects; parked %d, held %d, discarded %d; inbox: parked %d, quarantined %d, discarded %d; %d faults, %d "+
		"process starts\n",
		c.Events, c.UnknownThere, c.Unknown, c.RolledBack, c.Records, c.Duplicates, c.Effects, c.Parked, c.Held,
		c.Discarded, c.InboxParked, c.Quarantined, c.InboxDropped, c.Faults, c.Processes)
	if v.OK() {
		b.WriteString("no violation\n")
	}
	for _, one := range v.Violations {
		one.tell(&b)
	}
	for _, one := range v.Allowed {
		fmt.Fprintf(&b, "allowed: %s %s: %d (%s)\n", one.Invariant, one.Name, one.Count, one.Reason)
	}
	return b.String()
}

func (v Violation) tell(b *strings.Builder) {
	fmt.Fprintf(b, "%s violated: %s: %d\n", v.Invariant, v.Name, v.Count)
	for _, e := range v.Examples {
		fmt.Fprintf(b, "  %s\n", e.What)
		for _, line := range e.Story {
			fmt.Fprintf(b, "    %s\n", line)
		}
	}
}

// examples bounds how many of a kind are told.
const examples = 3

// findings collects violations.
type findings map[Name]*Violation

// add notes a violation about some events. Only the first few of a kind are told.
func (f findings) add(name Name, ids []uuid.UUID, format string, args ...any) {
	v := f[name]
	if v == nil {
		v = &Violation{Name: name}
		f[name] = v
	}
	v.Count++
	if len(v.Examples) < examples {
		v.Examples = append(v.Examples, Example{What: fmt.Sprintf(format, args...), IDs: ids})
	}
}

// verdict sorts the findings by invariant, in the order of Kinds, and sets those apart that are allowed.
func (f findings) verdict(allowed map[Name]string) (v Verdict) {
	for _, k := range Kinds() {
		found := f[k.Name]
		if found == nil {
			continue
		}
		found.Invariant = k.Invariant
		if why, ok := allowed[k.Name]; ok {
			found.Reason = why
			v.Allowed = append(v.Allowed, *found)
			continue
		}
		v.Violations = append(v.Violations, *found)
	}
	return v
}

// Add puts what Leaks has found into the verdict; nil adds nothing.
func (v *Verdict) Add(found *Violation) {
	if found != nil {
		v.Violations = append(v.Violations, *found)
	}
}
