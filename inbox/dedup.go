package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// Dedup is how an inbox tells a repeat from a new event.
type Dedup int

const (
	// ByID keeps a row with the id of each event. It recognizes repeats from any sender, in any order and partition,
	// and after a restore of the producers' database, for Config.Window. It costs a row and an index entry for each
	// event, and a partition for each day.
	ByID Dedup = iota

	// ByWatermark keeps a row for each partition and numbering, with the highest decided numbers that a relay gave to
	// events (ce_epoch, ce_lane, ce_laneseq). It has no row for each event and no window. The topic must be written
	// only by relays, and its partition count must not change while events are repeated. A person must decide the cases
	// that numbers cannot:
	//
	//   - An event that may have been published under another number (ce_maybe: an operator of the outbox released it
	//     after an unknown outcome) is parked without a run, as Config.OnFailure says. With ParkKey its key is parked
	//     too, so that nothing overtakes the event until an operator has checked whether it was applied. A replayed
	//     event is quarantined alone: it follows newer events anyway.
	//   - A new incarnation of an outbox (`relay fence`, a failover, a restore) halts each partition until an operator
	//     accepts it (`relay inbox accept`). Events published just before may be published again under new numbers.
	//     They are then applied again, unless the effect has a business key. A late event of an older incarnation is
	//     quarantined. A consumer that first reads a topic after a new incarnation began cannot detect it: events that
	//     are in the log under both incarnations are applied twice.
	//   - A record without a number is quarantined. If no record of its partition has a number, it halts the partition.
	//   - Two events that were appended with the same id count as two events.
	//
	// After a restore of the outbox without `relay fence`, the relay continues numbering from the backup: new events
	// look like repeats and are dropped. Always run `relay fence`.
	ByWatermark

	// ByOffset keeps a row for each partition, with the offset up to which it is decided. It is for a topic with one
	// writer that never repeats a record (an idempotent producer that does not start over after a failure). A record
	// that the writer repeats has a new offset and is applied again. A topic that was deleted and created again starts
	// again at offset zero. ByOffset detects that by a decided offset whose record time (not the event's time) is later
	// than all before, and halts the partition until an operator runs `relay inbox forget-offsets`. A record that a
	// relay wrote halts its partition, because relays repeat records.
	//
	// ByID identifies the records of such a topic by their ids, or by the hash of (topic, partition, offset, time) if
	// they have none. It costs a row for each event and makes no assumption about offsets.
	ByOffset
)

// String returns the name that inbox_consumer stores.
func (d Dedup) String() string {
	names := [...]string{"id", "watermark", "offset"}
	if d < 0 || int(d) >= len(names) {
		return fmt.Sprintf("dedup(%d)", int(d))
	}
	return names[d]
}

// dedupNamed returns the Dedup with that name; -1: there is none.
func dedupNamed(name string) Dedup {
	for d := ByID; d <= ByOffset; d++ {
		if d.String() == name {
			return d
		}
	}
	return -1
}

// strategy is the part of a transaction that depends on Config.Dedup. The rest is the same for all: plan, record, set
// aside, run the new events and commit, in this order.
type strategy interface {
	// ready reads the data that a plan needs of a partition, unless it is known.
	ready(ctx context.Context, p partitionName, a *assignment) *failure
	// plan decides what to record for the events, by the data of earlier transactions. giveUp: the single event is to
	// be parked.
	plan(events []event.Event, a *assignment, giveUp bool) (*planned, *failure)
	// queue adds the statements that record the plan. A second transaction that records the same waits for the first.
	// read reads their results.
	queue(b *pgx.Batch, p *planned)
	read(res pgx.BatchResults, p *planned) error
	// holds reports whether the plan is still right by the data that the transaction itself read.
	holds(p *planned, s *state) bool
}

func newStrategy(in *Inbox) strategy {
	if in.cfg.Dedup == ByID {
		return byID{in}
	}
	return byNumber{in, in.cfg.Dedup == ByOffset}
}

// registeredAs returns an error if the consumer is registered with another strategy.
func (in *Inbox) registeredAs(d Dedup) error {
	if d == in.cfg.Dedup {
		return nil
	}
	how := "give this process the same Config.Dedup, or give it a consumer name of its own, whose group begins where " +
		"you say and whose effects have a business key"
	if d == ByID {
		how = "stop all its workers and run `relay inbox move`, or give this process the same Config.Dedup"
	}
	return fmt.Errorf("inbox: consumer %q goes by %s, and this process would go by %s, which knows nothing of what "+
		"was applied: %s", in.consumer, d, in.cfg.Dedup, how)
}

// byID records each id in the table of its day, or in inbox_message_any.
type byID struct{ in *Inbox }

func (byID) ready(context.Context, partitionName, *assignment) *failure { return nil }

// allNewFrom is the number of events from which on a transaction may take all of them for new: below it, the check of
// the keys costs as much as it saves.
const allNewFrom = 8

func (d byID) plan(events []event.Event, a *assignment, giveUp bool) (*planned, *failure) {
	cfg := &d.in.cfg
	p, f := d.in.state.Load().plan(events, cfg.windowDays, cfg.DaysAhead, cfg.OnFailure == Halt)
	if f == nil {
		p.allNew = !giveUp && len(events) >= allNewFrom && a.expectsNoRepeats()
	}
	return p, f
}

// queue inserts into inbox_message before inbox_message_any, in every transaction: a different order could deadlock.
func (d byID) queue(b *pgx.Batch, p *planned) {
	if p.allNew {
		d.insert(b, p, inDay, sqlInsertNewDay, "")
		d.insert(b, p, inAny, sqlInsertNewAny, "")
		b.Queue(d.in.q(sqlHaveKeys))
		return
	}
	d.insert(b, p, inDay, sqlInsertDay, sqlInsertOneDay)
	d.insert(b, p, inAny, sqlInsertAny, sqlInsertOneAny)
}

// insert adds the insert into one table. one is the statement for a single id; empty: the same.
func (d byID) insert(b *pgx.Batch, p *planned, where route, several, one string) {
	ids, contents := p.of(where)
	switch {
	case len(ids) == 0:
		return
	case len(ids) == 1 && one != "":
		b.Queue(d.in.q(one), d.in.consumer, ids[0].String(), strconv.FormatInt(contents[0], 10))
	default:
		b.Queue(d.in.q(several), d.in.consumer, uuidArray(ids), intArray(contents))
	}
	p.queued++
}

// errNotAllNew is why a transaction that took all events for new begins again without that.
var errNotAllNew = errors.New("inbox: an event was decided before, or a table lacks its key")

func (byID) read(res pgx.BatchResults, p *planned) error {
	if p.allNew {
		return p.readAllNew(res)
	}
	for range p.queued {
		rows, err := res.Query()
		if err != nil {
			return err
		}
		if err := p.mark(rows); err != nil {
			return err
		}
	}
	return nil
}

func (d byID) holds(p *planned, s *state) bool {
	return p.holds(s, d.in.cfg.windowDays, d.in.cfg.DaysAhead)
}
