package inbox

import "github.com/effectonce/effectonce/event"

// account counts the offsets of a partition that are accounted for, up to an offset: decided events, and offsets that
// the log has no record for. It is written with each progress, and a doctor compares both.
type account struct {
	kept bool  // a consumer has begun the partition, and tells which offsets have no record
	next int64 // the offset up to which it counts
	n    int64 // how many of those from the beginning on are accounted for
}

// at returns the account up to an event, which is not decided.
func (a account) at(e *event.Event) account {
	if p := e.Position; a.kept && p.Offset > a.next { // otherwise it is read again
		a.next, a.n = p.Offset, a.n+min(p.Absent, p.Offset-a.next)
	}
	return a
}

// decided returns the account after events that are decided.
func (a account) decided(events []event.Event) account {
	for i := range events {
		if o := events[i].Position.Offset; a.kept && o >= a.next {
			a = a.at(&events[i])
			a.next, a.n = o+1, a.n+1
		}
	}
	return a
}

// pass advances the account past offsets without a record, if it is before their end.
func (a *account) pass(none absent) bool {
	if !a.kept || none.to <= a.next {
		return false
	}
	a.n += none.to - max(none.from, a.next)
	a.next = none.to
	return true
}

// upTo returns how many offsets are accounted for up to an offset, for a row whose progress is that. Below next, where
// events are read again, each counts when it is read.
func (a account) upTo(offset int64) int64 {
	if !a.kept {
		return a.n
	}
	return a.n - max(0, a.next-offset)
}

// missing returns how many offsets between two accounts nothing accounts for.
func (a account) missing(before account) int64 { return a.next - before.next - (a.n - before.n) }
