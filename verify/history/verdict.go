package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Verdict is the result of Check.
type Verdict struct {
	Counts Counts `json:"counts"`
	// Violations are those that are not allowed, by invariant. Empty: all invariants hold.
	Violations []Violation `json:"violations"`
	// Allowed are the counted violations that Allowed.Names allows.
	Allowed []Violation `json:"allowed"`
}

// OK reports whether all invariants hold.
func (v Verdict) OK() bool { return len(v.Violations) == 0 }

// Count returns the number of violations of a kind, allowed or not.
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

// Example is one violation with its story.
type Example struct {
	What  string      `json:"what"`
	IDs   []uuid.UUID `json:"ids,omitempty"`
	Story []string    `json:"story,omitempty"` // the entries about these events, with the faults around them
}

// Counts are the totals of a run.
type Counts struct {
	Events       int `json:"events"`        // committed business rows
	Unknown      int `json:"unknown"`       // appends with an unknown outcome
	UnknownThere int `json:"unknown_there"` // of these, the committed ones
	RolledBack   int `json:"rolled_back"`   // appends that failed
	Records      int `json:"records"`       // in Kafka
	Duplicates   int `json:"duplicates"`    // records whose id occurred before
	Effects      int `json:"effects"`
	Parked       int `json:"parked"`    // parked events in the outbox
	Held         int `json:"held"`      //
	Discarded    int `json:"discarded"` // by an operator, in the outbox, and not in Kafka
	InboxParked  int `json:"inbox_parked"`
	Quarantined  int `json:"quarantined"`
	InboxDropped int `json:"inbox_discarded"`
	Audits       int `json:"audits"`        // records that audits checked
	OffsetsBack  int `json:"offsets_back"`  // audits that found a group's offset lower than the one before
	Faults       int `json:"faults"`        // started
	Processes    int `json:"processes"`     // starts
	Torn         int `json:"torn"`          // histories whose last line is torn
	LanesTaken   int `json:"lanes_taken"`   //
	Attempts     int `json:"attempts"`      // events handed to the publisher, repeats included
	UnknownSends int `json:"unknown_sends"` // of these, without an answer
	RefusedSends int `json:"refused_sends"` // of these, refused
	EffectRuns   int `json:"effect_runs"`   // rolled back ones included
	LedgerRows   int `json:"ledger_rows"`   //
	Scheduled    int `json:"still_to_come"` // events that are not due
	Incarnations int `json:"incarnations"`  // numberings in the log
	// events that are in Kafka under more than one number: released, replayed, or after relay fence
	FirstAgain int `json:"several_number"`
}

// String returns the counts, and each violation with its examples and stories.
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

// examples is the maximum number of examples of a kind.
const examples = 3

// findings collects violations.
type findings map[Name]*Violation

// add adds a violation by events. It keeps the first few examples of a kind.
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

// verdict sorts the findings by invariant, in the order of Kinds, and separates the allowed ones.
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

// Add adds a violation of Leaks. It ignores nil.
func (v *Verdict) Add(found *Violation) {
	if found != nil {
		v.Violations = append(v.Violations, *found)
	}
}
