package start

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/redact"
	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// RefusalsEvery is how often it is said that the server refuses something.
const RefusalsEvery = 30 * time.Second

// refusedLane is a lane that the server refuses the work on.
type refusedLane struct {
	since, at, said time.Time
	last            error
	due             bool // with the move of due events: other work goes on
}

// over reports whether due events have not been refused for a while: they were cancelled, or another move succeeded.
func (l *refusedLane) over(now time.Time) bool { return l.due && now.Sub(l.at) > RefusalsEvery }

// Refuse notes that the work on one lane alone is refused: the move of its due events, or other work.
func (s *Start) Refuse(lane int16, err error, due bool) {
	now := time.Now()
	l := refusedLane{since: now}
	if before, ok := s.refused.Load(lane); ok {
		l = before.(refusedLane)
	}
	l.at, l.due = now, due
	if l.last = err; now.Sub(l.said) > RefusalsEvery {
		l.said = now
		defer s.Signals.Beat() // it shows operators the trouble
		s.Log.Error("the database refuses the work on a lane: its events wait, those of other lanes go on", "lane",
			lane, "error", err)
	}
	s.refused.Store(lane, l)
}

// Worked notes that work on a lane was done: the move of its due events, or other work.
func (s *Start) Worked(lane int16, due bool) {
	if was, ok := s.refused.Load(lane); ok && was.(refusedLane).due == due {
		s.refused.Delete(lane)
		s.Signals.Beat()
	}
}

// Refused is one of the lanes that the server refuses the work on, and since when; "": there is none.
func (s *Start) Refused(now time.Time) (text string, since time.Time) {
	mine := s.Lanes.All()
	s.refused.Range(func(lane, what any) bool {
		refused := what.(refusedLane)
		if !slices.Contains(mine, lane.(int16)) || refused.over(now) {
			s.refused.Delete(lane)
			return true
		}
		text, since = fmt.Sprintf("lane %d: %s", lane, Shown(refused.last)), refused.since
		return false
	})
	return text, since
}

// Holds notes why events of a place are held from now on.
func (s *Start) Holds(at delivery.Place, why error) {
	s.closed.Store(at, why)
	s.Signals.Beat() // it shows operators why
}

// holdsShown is how many of the places that a relay holds events for it names.
const holdsShown = 3

// Held is why the relay holds events, by place, the oldest first, and for how long; "": it holds none. Queries know the
// text by its first word.
func (s *Start) Held(now time.Time) (text string, lasts time.Duration) {
	type held struct {
		place, why string
		age        time.Duration
	}
	var list []held
	s.closed.Range(func(key, why any) bool {
		at, age := key.(delivery.Place), s.Health.Age(key.(delivery.Place), now)
		if age == 0 {
			s.closed.CompareAndDelete(key, why)
			return true
		}
		place := "topic " + at.Topic
		if at.Partition != delivery.WholeTopic {
			place = fmt.Sprintf("%s/%d", place, at.Partition)
		}
		list = append(list, held{place, Shown(why.(error)), age})
		return true
	})
	if len(list) == 0 {
		return "", 0
	}
	slices.SortFunc(list, func(a, b held) int {
		return cmp.Or(cmp.Compare(b.age, a.age), cmp.Compare(a.place, b.place))
	})
	var parts []string
	for _, h := range list[:min(len(list), holdsShown)] {
		parts = append(parts, h.place+" for "+h.age.Round(time.Second).String()+": "+h.why)
	}
	if more := len(list) - holdsShown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return "holds " + strings.Join(parts, "; "), list[0].age
}

// longestTrouble bounds what a heartbeat carries of an error, in bytes.
const longestTrouble = 200

// Shown is an error as a heartbeat carries it: no value of an event is in it.
func Shown(err error) string { return delivery.ErrorText(redact.Error(err), longestTrouble) }
