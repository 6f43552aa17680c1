package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/migrations"
)

// historyDays is the number of days of the history: the oldest of a window of 14 days, dropped one after the other.
const historyDays = 5

// The inbox without history, and its names.
const (
	bareSchema  = "bare"
	nameBare    = "Batch, no history"
	nameOld     = "Batch, history"
	nameBareTwo = "duplicates, no history"
	nameOldTwo  = "duplicates, history"
	nameReplay  = "duplicates of the old days, history"
)

// historyCase compares an inbox with many millions of ids with an empty one, in one database and with one ledger. Then
// it drops the days of the history, one by one, while batches continue.
func historyCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("history", fmt.Sprintf("%d rows of history in %d days. %d messages in batches of %d over 4 partitions, "+
		"with one ledger row for each. A replay is %d consecutive ids of each old day", o.history, historyDays,
		o.inboxBatched, inboxBatch, o.inboxBatched/historyDays))
	old, bare, err := s.inboxes(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.exec(context.WithoutCancel(ctx), queryDropBare) }()
	began := time.Now()
	days, err := s.fillHistory(ctx, o.history/historyDays, o.inboxBatched/historyDays)
	if err != nil {
		return err
	}
	rep.printf("  %d rows of history made in %.0f s", o.history, since(began))
	var replay []event.Event
	for _, d := range days {
		for _, id := range d.kept {
			replay = append(replay, event.Event{
				ID: id, Topic: "payments", Key: "acc-1", Type: "PaymentCreated",
				Time: time.Now(),
			})
		}
	}
	oldBatch, bareBatch := old.Batch(creditAll), bare.Batch(creditAll)
	for turn := range o.repeats + 1 {
		// Each turn has new ids, because the history must stay.
		fresh := newEvents(o.inboxBatched)
		for _, k := range []struct {
			name   string
			h      inbox.Handler
			events []event.Event
			booked int
		}{
			{nameBare, bareBatch, fresh, len(fresh)},
			{nameBareTwo, bareBatch, fresh, 0},
			{nameOld, oldBatch, fresh, len(fresh)},
			{nameOldTwo, oldBatch, fresh, 0},
			{nameReplay, oldBatch, replay, 0},
		} {
			if err := s.exec(ctx, queryEmptyLedger, queryCheckpoint); err != nil {
				return err
			}
			before := serverCPU()
			seconds, err := stream(ctx, k.h, k.events, inboxBatch, 4)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			var booked, parked int
			if err := s.db.QueryRow(ctx, queryLedgerRows).Scan(&booked, &parked); err != nil {
				return err
			}
			if booked != k.booked || parked != 0 {
				return fmt.Errorf("%s: %d rows in the ledger, want %d; %d events parked or quarantined, want none",
					k.name, booked, k.booked, parked)
			}
			n := float64(len(k.events))
			rep.add(figure{
				Case: "history", Name: k.name, Turn: turn, Events: len(k.events), Seconds: seconds, Rate: n / seconds,
				PostgresCPU: serverCPU().minus(before).postgres * 1e6 / n,
			})
		}
	}
	rep.ratio("history", nameOld, nameBare, 0.8)
	rep.ratio("history", nameOldTwo, nameBareTwo, 0.8)
	rep.atLeast("history", nameReplay, 100_000)
	return s.dropHistory(ctx, oldBatch, rep, o.history/historyDays)
}

// inboxes returns one with the history and one without.
func (s *stack) inboxes(ctx context.Context) (old, bare *inbox.Inbox, err error) {
	if err := s.exec(ctx, queryLedgerTable, queryEmptyInbox, queryDropBare); err != nil {
		return nil, nil, err
	}
	conn, err := pgx.ParseConfig(s.pg.URL())
	if err != nil {
		return nil, nil, err
	}
	if err := migrations.Up(ctx, conn, migrations.Options{
		Schema: bareSchema,
		Sets:   []migrations.Set{migrations.Inbox},
	}); err != nil {
		return nil, nil, err
	}
	for _, one := range []struct {
		in     **inbox.Inbox
		schema string
	}{{&old, "public"}, {&bare, bareSchema}} {
		if *one.in, err = inbox.New(s.db, "ledger", inbox.Config{Schema: one.schema}); err == nil {
			err = (*one.in).Prepare(ctx)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return old, bare, nil
}

// historyDay is a stream of one day's ids in the binary format of COPY.
type historyDay struct {
	day     string
	start   int64 // milliseconds of 1970
	rows    int
	at      int
	rng     *rand.ChaCha8
	keep    int // so many ids from the middle of the day on
	kept    []uuid.UUID
	buffer  []byte
	pending []byte // of buffer
	ended   bool
}

// fillHistory inserts rows in each of the old days, in the order of their ids. It creates the primary key afterwards,
// which takes a third of the time.
func (s *stack) fillHistory(ctx context.Context, rows, keep int) ([]*historyDay, error) {
	found, err := s.db.Query(ctx, queryOldDays, historyDays)
	if err != nil {
		return nil, err
	}
	days, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (*historyDay, error) {
		d := &historyDay{rows: rows, keep: min(keep, rows)}
		return d, row.Scan(&d.day, &d.start)
	})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	next := days
	err = inParallel(ctx, runtime.NumCPU(), len(days), 1, func(ctx context.Context, _ int) error {
		mu.Lock()
		d := next[0]
		next = next[1:]
		mu.Unlock()
		d.rng = rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", d.day))))
		return s.fillDay(ctx, d)
	})
	if err != nil {
		return nil, err
	}
	return days, s.exec(ctx, queryVacuumInbox)
}

func (s *stack) fillDay(ctx context.Context, d *historyDay) error {
	bound := func(ms int64) string { return v7(ms, [10]byte{}).String() }
	text := strings.NewReplacer("{day}", d.day, "{from}", bound(d.start), "{to}", bound(d.start+dayMillis))
	// Without arguments, because each has two statements.
	if _, err := s.db.Exec(ctx, text.Replace(queryLeaveDay)); err != nil {
		return err
	}
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, text.Replace(queryTruncateDay)); err != nil {
			return err
		}
		_, err := tx.Conn().PgConn().CopyFrom(ctx, d, text.Replace(queryCopyDay))
		return err
	})
	if err == nil {
		_, err = s.db.Exec(ctx, text.Replace(queryJoinDay))
	}
	if err != nil {
		return fmt.Errorf("fill day %s: %w", d.day, err)
	}
	return nil
}

const dayMillis = 24 * 60 * 60 * 1000

// Read implements io.Reader.
func (d *historyDay) Read(p []byte) (n int, err error) {
	if len(d.pending) == 0 {
		if d.ended {
			return 0, io.EOF
		}
		d.buffer = d.more(d.buffer[:0])
		d.pending = d.buffer
	}
	n = copy(p, d.pending)
	d.pending = d.pending[n:]
	return n, nil
}

// more appends the next rows, of three columns: consumer_name, message_id, processed_at.
func (d *historyDay) more(out []byte) []byte {
	const consumer = "ledger"
	if d.at == 0 {
		out = append(out, "PGCOPY\n\xff\r\n\x00"...)
		out = append(out, make([]byte, 8)...) // no flags, no extension
	}
	for end := min(d.at+1000, d.rows); d.at < end; d.at++ {
		ms := d.start + int64(d.at)*dayMillis/int64(d.rows)
		var random [10]byte
		_, _ = d.rng.Read(random[:]) // never fails
		random[0], random[2] = 0x70|random[0]&0x0f, 0x80|random[2]&0x3f
		id := v7(ms, random)
		if d.at >= d.rows/2 && len(d.kept) < d.keep {
			d.kept = append(d.kept, id)
		}
		out = binary.BigEndian.AppendUint16(out, 3)
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(consumer))), consumer...)
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(id))), id[:]...)
		const to2000 = 946_684_800_000 // Postgres counts microseconds from then
		out = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(out, 8), uint64((ms-to2000)*1000))
	}
	if d.at == d.rows {
		d.ended = true
		out = binary.BigEndian.AppendUint16(out, 0xffff)
	}
	return out
}

// v7 returns an id of a millisecond; rest contains the version and the variant.
func v7(ms int64, rest [10]byte) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16)
	copy(id[6:], rest[:])
	return id
}
