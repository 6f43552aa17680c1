package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
)

// byNumber records the decided numbers of a partition, in rows that a transaction replaces before its effects run.
type byNumber struct {
	in     *Inbox
	offset bool // offsets serve as numbers
}

// ready reads the watermarks of a partition, once per assignment and again when they turn out to be outdated.
func (d byNumber) ready(ctx context.Context, p partitionName, a *assignment) *failure {
	if a.getWatermarks() != nil {
		return nil
	}
	m := &watermarks{accepted: map[uuid.UUID]int32{}, first: map[uuid.UUID]int32{}, read: true}
	var b pgx.Batch
	incarnations := func(statement string, into map[uuid.UUID]int32, args ...any) {
		b.Queue(d.in.q(statement), args...).Query(func(rows pgx.Rows) error {
			var outbox pgtype.UUID
			var n int32
			_, err := pgx.ForEachRow(rows, []any{&outbox, &n}, func() error { into[outbox.Bytes] = n; return nil })
			return err
		})
	}
	incarnations(sqlAccepted, m.accepted, d.in.consumer)
	incarnations(sqlFirstMet, m.first, d.in.consumer, p.topic)
	b.Queue(d.in.q(sqlWatermarks), d.in.consumer, p.topic, p.id).Query(func(rows pgx.Rows) (err error) {
		m.of, err = pgx.CollectRows(rows, readWatermark)
		return err
	})
	if err := d.in.db.SendBatch(ctx, &b).Close(); err != nil {
		return d.in.classify(ctx, fmt.Errorf("inbox: reading the watermarks of %s-%d: %w", p.topic, p.id, err))
	}
	return d.check(ctx, p, a, m)
}

// check takes the watermarks that were read, unless they are below those that this process knows to be committed. Then
// the database has lost effects, and the next number would be decided past them: they would come as repeats.
func (d byNumber) check(ctx context.Context, p partitionName, a *assignment, m *watermarks) *failure {
	if was, is := a.knownWatermarks().lostIn(m); was > is {
		if !d.offset || is > 0 {
			return a.checkDatabase(fmt.Sprintf("%s, where the highest decided number of %s-%d, which was %d, is %d",
				a.beganIn(), p.topic, p.id, was, is))
		}
		// An operator may have had the offsets forgotten, which leaves the progress as it is.
		if f := d.in.checkProgress(ctx, d.in.db, p, a); f != nil {
			return f
		}
	}
	a.setWatermarks(m)
	return nil
}

func readWatermark(row pgx.CollectableRow) (m watermark, err error) {
	var outbox pgtype.UUID
	var lanes []int16
	var numbers []int64
	if err := row.Scan(&outbox, &m.incarnation, &m.version, &lanes, &numbers, &m.latest); err != nil {
		return m, err
	}
	m.outbox, m.lanes = outbox.Bytes, make(map[int16]int64, len(lanes))
	for i, lane := range lanes {
		m.lanes[lane] = numbers[i]
	}
	return m, nil
}

// plan decides by numbers. Until the ids of a consumer that was switched from ByID expire, it also quarantines events
// whose id is older than the remembered ids.
func (d byNumber) plan(events []event.Event, a *assignment, giveUp bool) (*planned, *failure) {
	m, cfg, s := a.getWatermarks(), &d.in.cfg, d.in.state.Load()
	if m == nil {
		return nil, &failure{kind: stale, err: errStale} // another goroutine found the watermarks to be outdated
	}
	p, f := m.plan(events, d.offset, cfg.OnFailure == Halt, giveUp)
	if f != nil {
		return nil, f
	}
	if !m.read && slices.ContainsFunc(p.replaced, func(i int) bool { return p.watermarks.of[i].version == 1 }) {
		// Nothing in this transaction would meet a mark that the database has lost, and lost numbers would be old ones.
		a.setWatermarks(nil)
		return nil, &failure{kind: stale}
	}
	// The ids of events that an operator decided are recorded.
	p.lookup, p.aged = s.IDs || giveUp, s.IDs
	if !p.lookup {
		return p, nil
	}
	for i := range p.ids {
		id := &p.ids[i]
		id.content = sql.Content(&events[id.index])
		if !id.isNew || !s.IDs || s.route(id.id, cfg.windowDays, cfg.DaysAhead) != tooOld {
			continue
		}
		if cfg.OnFailure == Halt {
			return nil, &failure{
				kind: undecidable, index: i, err: whyUndecidable(tooOld, &events[i], *s, cfg.windowDays),
			}
		}
		id.isNew, id.route = false, tooOld
		p.inserted--
		p.undecidable++
	}
	return p, nil
}

// queue replaces the watermarks in the order of their numberings, so that two transactions with several common
// watermarks wait at the first one instead of deadlocking.
func (d byNumber) queue(b *pgx.Batch, p *planned) {
	for _, i := range p.replaced {
		m := &p.watermarks.of[i]
		lanes := slices.Sorted(maps.Keys(m.lanes))
		numbers := make([]int64, len(lanes))
		for n, lane := range lanes {
			numbers[n] = m.lanes[lane]
		}
		statement := sqlAdvanceWatermark
		if m.version == 1 {
			statement = sqlFirstWatermark
		}
		b.Queue(d.in.q(statement), d.in.consumer, p.name.topic, p.name.id, m.outbox.String(), m.incarnation, m.version,
			lanes, numbers, m.latest)
	}
	if p.lookup {
		b.Queue(d.in.q(sqlKnownIDs), d.in.consumer, uuidArray(p.newIDs()))
	}
}

func (d byNumber) read(res pgx.BatchResults, p *planned) error {
	for range p.replaced {
		tag, err := res.Exec()
		if err != nil {
			return err
		}
		p.lost = p.lost || tag.RowsAffected() == 0
	}
	if !p.lookup {
		return nil
	}
	rows, err := res.Query()
	if err != nil {
		return err
	}
	known, err := readContents(rows)
	if err != nil {
		return err
	}
	for i := range p.ids {
		content, is := known[p.ids[i].id]
		if is && p.ids[i].isNew && !otherContent(content, p.ids[i].content) {
			p.ids[i].isNew = false
			p.inserted--
		}
	}
	return nil
}

func (byNumber) holds(p *planned, s *state) bool { return !p.lost && p.aged == s.IDs }
