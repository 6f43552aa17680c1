// Package dump reads the final state of a run: databases, topics from their first record, and committed offsets. It
// reads Kafka with another client library than the code under test, so that an error in that one cannot hide itself.
package dump

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/verify/history"
)

// Site names the databases and topics of a run.
type Site struct {
	// DB can read all tables: the outbox's, the inbox's and the run's own tables (package tables).
	DB *pgxpool.Pool
	// Schema holds the outbox and the inbox. Empty: the connection's search_path.
	Schema  string
	Brokers []string
	Topics  []string
	// Consumers must have applied every event of their topics.
	Consumers []Consumer
}

// Consumer is a consumer name with its group and topics.
type Consumer struct {
	Name, Group string
	Topics      []string
}

// Read reads the final state: first the database, in one snapshot, then Kafka, so that events that have left the outbox
// are in the log. Producers must have stopped, or the events that they commit meanwhile look like phantoms.
func (s Site) Read(ctx context.Context) (history.Dump, error) {
	var d history.Dump
	if err := s.readDatabase(ctx, &d); err != nil {
		return d, fmt.Errorf("dump: the database: %w", err)
	}
	windows := d.Consumers
	d.Consumers = nil
	for _, c := range s.Consumers {
		one := history.Consumer{Name: c.Name, Topics: c.Topics}
		for _, w := range windows {
			if w.Name == c.Name {
				one.WindowDays, one.ByNumber = w.WindowDays, w.ByNumber
			}
		}
		d.Consumers = append(d.Consumers, one)
		committed, err := s.committed(ctx, c)
		if err != nil {
			return d, fmt.Errorf("dump: offsets of group %s: %w", c.Group, err)
		}
		d.Offsets = append(d.Offsets, committed...)
	}
	d.Imply()
	for _, topic := range s.Topics {
		if err := s.readTopic(ctx, topic, &d); err != nil {
			return d, fmt.Errorf("dump: topic %s: %w", topic, err)
		}
	}
	return d, nil
}

// reader runs the statements of one snapshot until the first error.
type reader struct {
	conn   *pgx.Conn
	prefix string
	err    error
}

// read runs a statement and scans its rows into dest, calling each after every row.
func (r *reader) read(ctx context.Context, sql string, dest []any, each func(), args ...any) {
	if r.err != nil {
		return
	}
	rows, err := r.conn.Query(ctx, pgschema.Expand(sql, r.prefix), args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, dest, func() error {
			each()
			return nil
		})
	}
	r.err = err
}

func (s Site) readDatabase(ctx context.Context, d *history.Dump) error {
	prefix, err := pgschema.Prefix(s.Schema)
	if err != nil {
		return err
	}
	conn, err := s.DB.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // after an error the transaction is open, and the pool closes the connection
	if _, err := conn.Exec(ctx, sqlBegin); err != nil {
		return err
	}
	r := &reader{conn: conn.Conn(), prefix: prefix}
	r.read(ctx, sqlNow, []any{&d.Now}, func() {})
	r.run(ctx, d)
	r.outbox(ctx, d)
	r.inbox(ctx, d)
	if r.err != nil {
		return r.err
	}
	_, err = conn.Exec(ctx, "rollback")
	return err
}

// run reads the run's own tables.
func (r *reader) run(ctx context.Context, d *history.Dump) {
	var e history.Event
	r.read(ctx, sqlBusiness, []any{
		&e.ID, &e.Tenant, &e.Topic, &e.Key, &e.Version, &e.Business, &e.Scheduled, &e.Poison,
		&e.Skipped, &e.Digest,
	},
		func() { d.Business = append(d.Business, e) })
	var f history.Effect
	r.read(ctx, sqlEffects, []any{&f.Consumer, &f.ID, &f.Version, &f.Business, &f.Partition, &f.Offset},
		func() { d.Effects = append(d.Effects, f) })
	var b history.Booking
	r.read(ctx, sqlLedger, []any{&b.Consumer, &b.Business, &b.ID}, func() { d.Ledger = append(d.Ledger, b) })
}

func (r *reader) outbox(ctx context.Context, d *history.Dump) {
	var row history.Row
	r.read(ctx, sqlRows, []any{
		&row.Place, &row.Lane, &row.Number, &row.ID, &row.Refused, &row.Releasing, &row.MaybePublished,
		&row.Code,
	},
		func() { d.Rows = append(d.Rows, row) })
	var k history.ParkedKey
	r.read(ctx, sqlKeys, []any{&k.Tenant, &k.Topic, &k.Key, &k.Releasing, &k.Waiting},
		func() { d.Keys = append(d.Keys, k) })
	var c history.Claim
	r.read(ctx, sqlClaims, []any{&c.Lane, &c.First, &c.Events}, func() { d.Claims = append(d.Claims, c) })
	var l history.Lane
	r.read(ctx, sqlLanes, []any{&l.Lane, &l.Owned, &l.Fence, &l.Overdue}, func() { d.Lanes = append(d.Lanes, l) })
	var action string
	var keyless bool
	var id *uuid.UUID
	var x history.Discard
	r.read(ctx, sqlDiscards, []any{
		&action, &id, &x.Tenant, &x.Topic, &x.Key, &x.Events, &x.MaybePublished, &keyless,
	}, func() {
		x.ID = uuid.Nil
		if id != nil {
			x.ID = *id
		}
		x.AnyKey, x.Scheduled = meanings[action] == discardsOfTopic && keyless, action == audit.CancelAllScheduled
		d.Discards = append(d.Discards, x)
	}, actions(discards, discardsOfTopic))
	var mended uuid.UUID
	r.read(ctx, sqlMended, []any{&mended}, func() { d.Mended = append(d.Mended, mended) }, actions(mends))
}

func (r *reader) inbox(ctx context.Context, d *history.Dump) {
	var c history.Consumer
	r.read(ctx, sqlConsumers, []any{&c.Name, &c.WindowDays, &c.ByNumber},
		func() { d.Consumers = append(d.Consumers, c) })
	var row history.InboxRow
	r.read(ctx, sqlInbox, []any{&row.Consumer, &row.ID, &row.Status, &row.Any},
		func() { d.Inbox = append(d.Inbox, row) })
	var p history.InboxParked
	r.read(ctx, sqlInboxParked, []any{&p.Consumer, &p.ID, &p.Kind, &p.Code, &p.Alone, &p.Releasing},
		func() { d.InboxParked = append(d.InboxParked, p) })
	var k history.InboxKey
	r.read(ctx, sqlInboxKeys, []any{&k.Consumer, &k.Topic, &k.Key, &k.Releasing, &k.Waiting},
		func() { d.InboxKeys = append(d.InboxKeys, k) })
	var h history.Halted
	r.read(ctx, sqlHalted, []any{&h.Consumer, &h.Topic, &h.Partition, &h.Offset, &h.Error},
		func() { d.Halted = append(d.Halted, h) })
	r.read(ctx, sqlDroppedBefore, []any{&d.DroppedBefore}, func() {})
}

// undecided returns the ids that a consumer has neither decided nor parked, and whose day was not dropped.
func (s Site) undecided(ctx context.Context, consumer string, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	prefix, err := pgschema.Prefix(s.Schema)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	rows, err := s.DB.Query(ctx, pgschema.Expand(sqlUndecided, prefix), consumer, texts)
	if err != nil {
		return nil, err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	// Read last, because a day may be dropped meanwhile.
	var dropped time.Time
	if err := s.DB.QueryRow(ctx, pgschema.Expand(sqlDroppedBefore, prefix)).Scan(&dropped); err != nil {
		return nil, err
	}
	open := map[uuid.UUID]bool{}
	for _, id := range missing {
		if day, ok := dayOf(id); !ok || !day.Before(dropped) {
			open[id] = true
		}
	}
	return open, nil
}

// dayOf returns the day of a UUIDv7.
func dayOf(id uuid.UUID) (time.Time, bool) {
	if id.Version() != 7 {
		return time.Time{}, false
	}
	sec, nsec := id.Time().UnixTime()
	return time.Unix(sec, nsec).UTC(), true
}
