package cycle

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

// rowReader turns rows into events with few allocations: topics, types and sources repeat, and payloads are cut from
// slabs. The scanners work in both wire formats, so every query mode of pgx works.
type rowReader struct {
	values pg.Copier
	bytes  map[int16]int // payload bytes and overhead per lane
	e      event.Event
	it     delivery.Item
	// parkEvent: an event is parked without its key.
	parkEvent bool
	headers   []byte
}

func newRowReader(parkEvent bool) *rowReader {
	return &rowReader{bytes: make(map[int16]int, lanes.Count), parkEvent: parkEvent}
}

// interned scans a text column with few distinct values.
type interned struct {
	r  *rowReader
	to *string
}

// ScanBytes implements pgtype.BytesScanner.
func (i interned) ScanBytes(v []byte) error {
	*i.to = i.r.values.Text(v)
	return nil
}

// payloadScanner copies a payload out of the connection's buffer.
type payloadScanner struct{ r *rowReader }

// ScanBytes implements pgtype.BytesScanner.
func (p payloadScanner) ScanBytes(v []byte) error {
	p.r.e.Payload = p.r.values.Bytes(v)
	return nil
}

// targets are the scan targets of the columns that message_id to time share in both queries.
func (r *rowReader) targets() []any {
	e := &r.e
	return []any{
		pg.ID{To: &e.ID},
		interned{r, &e.Source},
		interned{r, &e.Tenant},
		interned{r, &e.Topic},
		&e.Key,
		interned{r, &e.Type},
		interned{r, &e.ContentType},
		&r.headers,
		payloadScanner{r},
		&e.Time,
	}
}

// readNew reads rows that have no number yet: their ids are in its place until [Claim.number].
func (r *rowReader) readNew(rows pgx.Rows, c *Claim, at map[int16]*Part) error {
	targets := append([]any{&r.e.Position.Lane, &r.e.Position.Seq}, r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		r.e.Position.First, r.e.Position.MaybePublished = true, false
		r.it = delivery.Item{ID: r.e.Position.Seq}
		return r.add(c, at[r.e.Position.Lane])
	})
	return err
}

// readMarked is [rowReader.readNew] for lanes that may have marks: the rows of marked keys have moved.
func (r *rowReader) readMarked(rows pgx.Rows, c *Claim, at map[int16]*Part) error {
	var marked bool
	targets := append([]any{&r.e.Position.Lane, &r.e.Position.Seq, &marked}, r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		l := at[r.e.Position.Lane]
		if marked {
			l.Behind++
			return nil
		}
		r.e.Position.First, r.e.Position.MaybePublished = true, false
		r.it = delivery.Item{ID: r.e.Position.Seq}
		return r.add(c, l)
	})
	return err
}

// readList reads released rows; like new ones, they have no number yet.
func (r *rowReader) readList(rows pgx.Rows, c *Claim, at map[int16]*Part) error {
	var alone, maybe bool
	targets := append([]any{&r.e.Position.Lane, &r.e.Position.Seq, &alone, &maybe}, r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		r.e.Position.First, r.e.Position.MaybePublished = !maybe, maybe
		r.it = delivery.Item{ID: r.e.Position.Seq, From: delivery.FromParked, Alone: alone}
		return r.add(c, at[r.e.Position.Lane])
	})
	return err
}

// readHeld reads the held rows of a try, which have their numbers already.
func (r *rowReader) readHeld(rows pgx.Rows, c *Claim, at map[int16]*Part) error {
	it := delivery.Item{From: delivery.FromHeld}
	var maybe bool
	targets := append([]any{&r.e.Position.Lane, &it.ID, &r.e.Position.Seq, &it.Partition, &it.MaybePublished, &maybe},
		r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		return r.addHeld(c, at[r.e.Position.Lane], it, maybe)
	})
	return err
}

// readDrained reads held rows. Those behind a parked event of their key have moved.
func (r *rowReader) readDrained(rows pgx.Rows, c *Claim, at map[int16]*Part) error {
	it := delivery.Item{From: delivery.FromHeld}
	var maybe, behind bool
	targets := append([]any{
		&r.e.Position.Lane, &it.ID, &r.e.Position.Seq, &it.Partition, &it.MaybePublished, &maybe, &behind,
	}, r.targets()...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		l := at[r.e.Position.Lane]
		if behind {
			l.Behind++
			return nil
		}
		return r.addHeld(c, l, it, maybe)
	})
	return err
}

func (r *rowReader) addHeld(c *Claim, l *Part, it delivery.Item, maybe bool) error {
	r.e.Position.First, r.e.Position.MaybePublished = !it.MaybePublished && !maybe, maybe
	r.it = it
	if l.First == 0 || r.e.Position.Seq < l.First {
		l.First = r.e.Position.Seq
	}
	return r.add(c, l)
}

// readOpen reads open journal entries. The columns of a discarded event are null and cannot be scanned, so each row's
// head is read first.
func (r *rowReader) readOpen(rows pgx.Rows, c *Claim, at map[int16]*Part) error {
	defer rows.Close()
	var first, seq int64
	var lane int16
	var gone, maybe bool
	it := delivery.Item{MaybePublished: true} // the entry's first owner may have sent it
	head, columns := []any{&lane, &first, &seq, &gone, &it.ID, &it.From, &it.Partition, &it.Alone, &maybe}, r.targets()
	headOnly := append(slices.Clone(head), make([]any, len(columns))...) // nil targets are skipped
	whole := append(slices.Clone(head), columns...)
	for rows.Next() {
		if err := rows.Scan(headOnly...); err != nil {
			return err
		}
		l := at[lane]
		l.First = first
		if gone {
			l.discarded++
			continue
		}
		if err := rows.Scan(whole...); err != nil {
			return err
		}
		r.e.Position.Lane, r.e.Position.Seq, r.e.Position.First, r.e.Position.MaybePublished = lane, seq, false, maybe
		r.it = it
		if err := r.add(c, l); err != nil {
			return err
		}
	}
	return rows.Err()
}

// textOf returns the size of an event's texts, without its headers.
func textOf(e *event.Event) int {
	return len(e.Key) + len(e.Tenant) + len(e.Source) + len(e.Type) + len(e.ContentType)
}

// add appends the scanned row.
func (r *rowReader) add(c *Claim, l *Part) error {
	r.e.Headers = nil
	if len(r.headers) > 0 {
		if err := json.Unmarshal(r.headers, &r.e.Headers); err != nil {
			return fmt.Errorf("relay: headers of event %s: %w", r.e.ID, err)
		}
	}
	r.e.Time = r.e.Time.UTC().Truncate(time.Microsecond)
	l.count++
	l.large = l.large || !l.bulk && (len(r.e.Payload) > largePayload || len(r.headers) > largePayload)
	r.bytes[l.Lane] += len(r.e.Payload) + len(r.headers) + textOf(&r.e) + EventOverhead
	if r.it.From != delivery.FromParked {
		r.it.Alone = r.parkEvent || r.e.Key == ""
	}
	c.Events, c.Items = append(c.Events, r.e), append(c.Items, r.it)
	return nil
}
