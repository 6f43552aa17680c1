package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
)

// Dedup is how an inbox distinguishes a repeat from a new event.
type Dedup int

const (
	// ByID keeps a row for each event: its id. It knows a repeat from any sender, in any order and partition,
	// and after a restore of the producers' database, for Config.Window. It costs a row and an index entry
	// an event, and a partition a day.
	ByID Dedup = iota

	// ByWatermark keeps a row for each partition and numbering: how far the numbers are decided that a relay gave its
	// events (ce_epoch, ce_lane, ce_laneseq). It has no row for an event, and no window. It needs a topic that only
	// relays write to, with a partition count that does not change while events are repeated. What numbers do
	// not decide, a person does:
	//
	//   - An event that may have been published under another number (ce_maybe: an operator of the outbox released it
	//     after an unknown outcome) is parked without a run, as Config.OnFailure says: with its key, so that nothing
	//     overtakes it, until somebody has looked whether it was applied. One that is replayed is quarantined alone: it
	//     comes after newer ones anyway.
	//   - A new incarnation of an outbox (`relay fence`, a failover, a restore) halts each partition until it is
	//     accepted (`relay inbox accept`): what was published just before may be published again under new numbers, and
	//     is then applied again, unless the effect has a business key. What comes late under an older incarnation is
	//     quarantined. A consumer that first reads a topic after such a rise cannot tell: what the log has under both
	//     incarnations, it applies twice.
	//   - A record without a number is quarantined, and halts a partition that has none with one.
	//   - Two events that were appended with the same id are two events.
	//
	// A restore of the outbox that nobody fenced makes its relay count from the backup on: new events look like
	// repeats, and are dropped. Run `relay fence`.
	ByWatermark

	// ByOffset keeps a row for each partition: how far its offsets are decided. It is for a topic that one writer
	// writes to who never repeats a record (an idempotent producer that does not begin anew after a failure): a repeat
	// of the writer has an offset of its own and is applied again. A topic that was made again begins its offsets
	// again; a record of it is recognized by the record's time (not the event's), which must be later than all before,
	// and halts its partition until an operator has the offsets forgotten (`relay inbox forget-offsets`). One that a
	// relay wrote halts its partition, for relays repeat.
	//
	// ByID knows the records of such a topic by their ids, or by the hash of (topic, partition, offset, time) where
	// they have none: a row each, and no assumption about offsets that begin again.
	ByOffset
)

// String is the name that inbox_consumer keeps.
func (d Dedup) String() string {
	names := [...]string{"id", "watermark", "offset"}
	if d < 0 || int(d) >= len(names) {
		return fmt.Sprintf("dedup(%d)", int(d))
	}
	return names[d]
}

// dedupNamed is the one with that name; -1: there is none.
func dedupNamed(name string) Dedup {
	for d := ByID; d <= ByOffset; d++ {
		if d.String() == name {
			return d
		}
	}
	return -1
}

// strategy is what of a transaction depends on Config.Dedup. The engine is the same for all: it plans, records, sets
// aside, runs what is new and commits, in this order.
type strategy interface {
	// ready reads what a plan needs to know of a partition, unless it is known.
	ready(ctx context.Context, p partitionName, a *assignment) *failure
	// plan says what to record of the events, by what earlier transactions read. giveUp: the one event is to be parked.
	plan(events []event.Event, a *assignment, giveUp bool) (*planned, *failure)
	// queue adds the statements that record the plan; a second transaction that records the same waits for the first.
	// read takes their results.
	queue(b *pgx.Batch, p *planned)
	read(res pgx.BatchResults, p *planned) error
	// holds reports whether the plan is right by what the transaction itself read.
	holds(p *planned, s *state) bool
}

func newStrategy(in *Inbox) strategy {
	if in.cfg.Dedup == ByID {
		return byID{in}
	}
	return byNumber{in, in.cfg.Dedup == ByOffset}
}

// registeredAs refuses another strategy than the one that the consumer is registered with.
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

// byID records ids, each in the table of its day, or in any.
type byID struct{ in *Inbox }

func (byID) ready(context.Context, partitionName, *assignment) *failure { return nil }

func (d byID) plan(events []event.Event, _ *assignment, _ bool) (*planned, *failure) {
	cfg := &d.in.cfg
	return d.in.state.Load().plan(events, cfg.windowDays, cfg.DaysAhead, cfg.OnFailure == Halt)
}

// queue puts inbox_message before any in every transaction: the other way round deadlocks.
func (d byID) queue(b *pgx.Batch, p *planned) {
	if ids := p.of(inDay); len(ids) > 0 {
		b.Queue(d.in.q(sqlInsertDay), d.in.consumer, uuidArray(ids))
		p.queued++
	}
	if ids := p.of(inAny); len(ids) > 0 {
		b.Queue(d.in.q(sqlInsertAny), d.in.consumer, uuidArray(ids))
		p.queued++
	}
}

func (byID) read(res pgx.BatchResults, p *planned) error {
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
