package history

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// line is a line of a story.
type line struct {
	at   time.Time
	text string
}

// longestStory is the maximum number of lines of an example.
const longestStory = 40

// tell writes the stories of all examples: the entries of all processes about their events, ordered by wall clock, with
// the faults in between.
func (r *run) tell() {
	wanted := map[uuid.UUID][]line{}
	for _, v := range r.found {
		for _, e := range v.Examples {
			for _, id := range e.IDs {
				wanted[id] = nil
			}
		}
	}
	if len(wanted) == 0 {
		return
	}
	var faults []line
	for i := range r.in.Histories {
		p := &r.in.Histories[i]
		for j := range p.Entries {
			e := &p.Entries[j]
			switch e.Kind {
			case KindFault, KindFaultEnded, KindStart, KindStop, KindOutage:
				faults = append(faults, line{e.At, fmt.Sprintf("-- %s of %s: %s %s %s", e.Kind, e.Process, e.Verb,
					e.Detail, e.Err)})
			}
			mention(wanted, p, e)
		}
	}
	slices.SortStableFunc(faults, func(a, b line) int { return a.at.Compare(b.at) })
	for _, v := range r.found {
		for i := range v.Examples {
			v.Examples[i].Story = r.story(v.Examples[i].IDs, wanted, faults)
		}
	}
}

// mention adds an entry to the lines of the wanted events that it names.
func mention(wanted map[uuid.UUID][]line, p *Process, e *Entry) {
	say := func(id uuid.UUID, format string, args ...any) {
		if lines, ok := wanted[id]; ok {
			wanted[id] = append(lines, line{e.At, fmt.Sprintf(format, args...)})
		}
	}
	for i := range e.Events {
		ev := &e.Events[i]
		say(ev.ID, "%s is about to commit %s (key %q, version %d)", e.Process, ev.ID, ev.Key, ev.Version)
	}
	for _, s := range e.Sent {
		say(s.ID, "%s sends %s as number %d of lane %d", e.Process, s.ID, s.Seq, s.Lane)
	}
	for _, v := range e.Refused {
		say(v.ID, "%s: %s was not acked: %s", e.Process, v.ID, v.Err)
	}
	for i, id := range e.IDs {
		detail := e.Detail
		if i < len(e.Outcomes) {
			detail = e.Outcomes[i]
		}
		say(id, "%s: %s %s of %s %s %s", e.Process, e.Kind, e.Verb, id, detail, e.Err)
	}
	begin := begun(p, e)
	if begin == nil {
		return
	}
	for i := range begin.Events {
		say(begin.Events[i].ID, "%s: commit of %s: %s %s", e.Process, begin.Events[i].ID, e.Outcome, e.Err)
	}
	refused := map[uuid.UUID]bool{}
	for _, v := range e.Refused {
		refused[v.ID] = true
	}
	for _, s := range begin.Sent {
		if !refused[s.ID] {
			say(s.ID, "%s: %s is acked", e.Process, s.ID)
		}
	}
	for i, id := range begin.IDs {
		if i < len(e.Outcomes) {
			say(id, "%s: %s is %s", e.Process, id, e.Outcomes[i])
		}
	}
}

// story merges the lines of events with the faults around them, and ends with their final state.
func (r *run) story(ids []uuid.UUID, wanted map[uuid.UUID][]line, faults []line) []string {
	var lines []line
	for _, id := range ids {
		lines = append(lines, wanted[id]...)
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	if len(lines) > 0 {
		from, to := lines[0].at.Add(-time.Second), lines[len(lines)-1].at.Add(time.Second)
		for _, f := range faults {
			if f.at.After(from) && f.at.Before(to) {
				lines = append(lines, f)
			}
		}
		slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	}
	var out []string
	for i, l := range lines {
		if len(lines) > longestStory && i >= longestStory/2 && i < len(lines)-longestStory/2 {
			if i == longestStory/2 {
				out = append(out, fmt.Sprintf("... %d lines ...", len(lines)-longestStory))
			}
			continue
		}
		out = append(out, l.at.UTC().Format("15:04:05.000")+" "+strings.TrimSpace(l.text))
	}
	for _, id := range ids {
		out = append(out, r.now(id)...)
	}
	return out
}

// now returns the final state of an event.
func (r *run) now(id uuid.UUID) (out []string) {
	if e, _, ok := r.event(id); ok {
		out = append(out, fmt.Sprintf("in the end: %s is committed (topic %s, key %q, version %d)", id, e.Topic, e.Key,
			e.Version))
	} else {
		out = append(out, fmt.Sprintf("in the end: %s is not committed", id))
	}
	for i := range r.dump.Rows {
		if row := &r.dump.Rows[i]; row.ID == id {
			out = append(out, fmt.Sprintf("in the end: %s has it (number %d of lane %d) %s", row.Place, row.Number,
				row.Lane, row.Code))
		}
	}
	for i := range r.dump.Records {
		if rec := &r.dump.Records[i]; rec.ID == id {
			out = append(out, fmt.Sprintf("in the end: %s/%d offset %d has it (number %d of lane %d, epoch %s)",
				rec.Topic, rec.Partition, rec.Offset, rec.Seq, rec.Lane, rec.Epoch))
		}
	}
	for i := range r.dump.Inbox {
		if row := &r.dump.Inbox[i]; row.ID == id {
			out = append(out, fmt.Sprintf("in the end: %s says %s", row.Consumer, row.Status))
		}
	}
	for i := range r.dump.InboxParked {
		if p := &r.dump.InboxParked[i]; p.ID == id {
			out = append(out, fmt.Sprintf("in the end: it is %s at %s, %s", p.Kind, p.Consumer, p.Code))
		}
	}
	for i := range r.dump.Effects {
		if f := &r.dump.Effects[i]; f.ID == id {
			out = append(out, fmt.Sprintf("in the end: it had an effect at %s (read at offset %d of partition %d)",
				f.Consumer, f.Offset, f.Partition))
		}
	}
	return out
}
