package inbox

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// TestP9_8_NumbersDecide: random logs as relays write them are read by random members. In a log the numbers of a lane's
// first occurrences rise, with gaps, and claims are repeated late, in whole or in part. A member begins at any offset
// up to the first undecided one, and some of its transactions are rolled back. Each event is new exactly once, in the
// order of its lane. The test needs no database: only the verdicts by number are run.
func TestP9_8_NumbersDecide(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		if err := numbersDecide(rand.New(rand.NewPCG(seed, 8))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func numbersDecide(draw *rand.Rand) error {
	log := drawLog(draw)
	m := &watermarks{accepted: map[uuid.UUID]int32{}}
	decided, applied, last := 0, map[uuid.UUID]int{}, map[string]int64{}
	for decided < len(log) {
		at := max(0, decided-draw.IntN(20))
		n := min(1+draw.IntN(12), len(log)-at)
		p, f := m.plan(log[at:at+n], false, false, false)
		if f != nil && f.kind == bounded { // the second of two events with one id has a transaction of its own
			n = f.index
			p, f = m.plan(log[at:at+n], false, false, false)
		}
		if f != nil {
			return fmt.Errorf("at %d: %w", at, f.err)
		}
		if draw.IntN(4) == 0 {
			continue // rolled back
		}
		for _, id := range p.ids {
			if e := &log[at+int(id.index)]; id.isNew {
				lane := fmt.Sprint(e.Position.Epoch, e.Position.Lane)
				if e.Position.Seq < last[lane] {
					return fmt.Errorf("number %d of %s is new after %d", e.Position.Seq, lane, last[lane])
				}
				last[lane] = e.Position.Seq
				applied[id.id]++
			}
		}
		m, decided = p.watermarks, max(decided, at+n)
	}
	for i := range log {
		if applied[log[i].ID] != 1 {
			return fmt.Errorf("event %d of lane %d was new %d times", log[i].Position.Seq, log[i].Position.Lane,
				applied[log[i].ID])
		}
	}
	return nil
}

// drawLog returns a random log of one partition: claims of a few lanes of two outboxes.
func drawLog(draw *rand.Rand) (log []event.Event) {
	next := map[int]int64{}
	var claims [][]event.Event
	for range 12 {
		which := draw.IntN(6)
		var claim []event.Event
		for range 1 + draw.IntN(6) {
			next[which] += 1 + int64(draw.IntN(3)/2*draw.IntN(40)) // gaps
			claim = append(claim, event.Event{
				ID: event.NewID(), Topic: "t", Time: time.Now(), Position: event.Position{
					Epoch: []string{
						"5b1f0a9e-0c6d-4f57-8d3a-0f1f6f1a2b3c.1",
						"77777777-0c6d-4f57-8d3a-0f1f6f1a2b3c.9",
					}[which%2], Lane: int16(which / 2), Seq: next[which],
				},
			})
		}
		log = append(log, claim...)
		claims = append(claims, claim)
		for draw.IntN(3) == 0 {
			late := claims[draw.IntN(len(claims))]
			from := draw.IntN(len(late))
			log = append(log, late[from:]...)
		}
	}
	for i := range log {
		log[i].Position.Offset = int64(i)
	}
	return log
}
