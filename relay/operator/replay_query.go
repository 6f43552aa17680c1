package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// replayBytes is the size at which a batch of a query's rows is full, however few they are.
const replayBytes = 4 << 20

// queriedRow is a row of Replay.Query.
type queriedRow struct {
	event.Event
	headers []byte
	created time.Time
}

type queriedColumn struct {
	name, typeName string
	types          []uint32
	place          func(r *queriedRow) any
}

// requiredColumns is how many of queriedColumns a query must have: without one of them the event would be another one.
const requiredColumns = 5

func queriedColumns() []queriedColumn {
	text := func(name string, place func(r *queriedRow) *string) queriedColumn {
		return queriedColumn{
			name, "text",
			[]uint32{pgtype.TextOID, pgtype.VarcharOID},
			func(r *queriedRow) any { return (*zeronull.Text)(place(r)) },
		}
	}
	at := func(name string, place func(r *queriedRow) *time.Time) queriedColumn {
		return queriedColumn{
			name, "timestamptz",
			[]uint32{pgtype.TimestamptzOID},
			func(r *queriedRow) any { return (*zeronull.Timestamptz)(place(r)) },
		}
	}
	return []queriedColumn{
		{"message_id", "uuid", []uint32{pgtype.UUIDOID}, func(r *queriedRow) any { return (*zeronull.UUID)(&r.ID) }},
		text("topic", func(r *queriedRow) *string { return &r.Topic }),
		text("key", func(r *queriedRow) *string { return &r.Key }),
		text("type", func(r *queriedRow) *string { return &r.Type }),
		{"payload", "bytea", []uint32{pgtype.ByteaOID}, func(r *queriedRow) any { return &r.Payload }},

		text("source", func(r *queriedRow) *string { return &r.Source }),
		text("tenant", func(r *queriedRow) *string { return &r.Tenant }),
		text("content_type", func(r *queriedRow) *string { return &r.ContentType }),
		{"headers", "jsonb", []uint32{pgtype.JSONBOID, pgtype.JSONOID}, func(r *queriedRow) any { return &r.headers }},
		at("event_time", func(r *queriedRow) *time.Time { return &r.Time }),
		at("created_at", func(r *queriedRow) *time.Time { return &r.created }),
	}
}

// ownColumn reports whether a column has the outbox's or the archive's own numbers: it is ignored, so that `select *`
// works on copies of the two.
func ownColumn(name string) bool {
	return slices.Contains([]string{"lane", "id", "seq", "epoch", "pos", "published_at"}, name)
}

// queriedShape has the target of each column of a row; nil: the column is ignored.
type queriedShape []func(r *queriedRow) any

// shapeOf refuses a query whose rows are not complete events.
func shapeOf(sd *pgconn.StatementDescription) (queriedShape, error) {
	if len(sd.ParamOIDs) > 0 {
		return nil, errors.New("it has parameters: write the values out")
	}
	columns, seen := queriedColumns(), map[string]bool{}
	var shape queriedShape
	for _, f := range sd.Fields {
		n := slices.IndexFunc(columns, func(c queriedColumn) bool { return c.name == f.Name })
		switch {
		case seen[f.Name]:
			return nil, fmt.Errorf("it has two columns %q", f.Name)
		case n < 0 && !ownColumn(f.Name):
			return nil, fmt.Errorf("it has a column %q, which events have not: name the columns as outbox_event does",
				f.Name)
		case n < 0:
			shape = append(shape, nil)
		case slices.Contains(columns[n].types, f.DataTypeOID):
			shape = append(shape, columns[n].place)
		case f.Name == "payload":
			return nil, errors.New("its payload is no bytea: write convert_to(payload::text, 'UTF8') as payload")
		default:
			return nil, fmt.Errorf("its %s is no %s: write %[1]s::%s", f.Name, columns[n].typeName)
		}
		seen[f.Name] = true
	}
	columns = slices.DeleteFunc(columns[:requiredColumns], func(c queriedColumn) bool { return seen[c.name] })
	if len(columns) > 0 {
		return nil, fmt.Errorf("it has no column %s: select message_id, topic, key, type and payload at least, as "+
			"they were; "+
			"an inbox knows an event by its message_id", columns[0].name)
	}
	return shape, nil
}

// read reads rows as events; first is the row number of the first, counted from 1.
func (s queriedShape) read(rows pgx.Rows, first int64) ([]event.Event, error) {
	n := first - 1
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Event, error) {
		n++
		r, places := queriedRow{Event: event.Event{ContentType: event.ContentTypeJSON}}, make([]any, len(s))
		for i, place := range s {
			if place != nil {
				places[i] = place(&r)
			}
		}
		if err := row.Scan(places...); err != nil {
			return r.Event, fmt.Errorf("row %d: %w", n, err)
		}
		if r.ID == uuid.Nil {
			return r.Event, fmt.Errorf("row %d has no message_id", n)
		}
		if r.headers != nil && json.Unmarshal(r.headers, &r.Headers) != nil {
			return r.Event, fmt.Errorf("row %d: its headers are no object of strings", n)
		}
		if r.Time.IsZero() {
			if r.Time = r.created; r.Time.IsZero() {
				r.Time, _ = event.IDTime(r.ID)
			}
		}
		return r.Event, nil
	})
}

// checkQuery describes a query without running it. Several statements are refused here, because later steps embed the
// text in another statement.
func checkQuery(ctx context.Context, tx pgx.Tx, query string) (queriedShape, error) {
	sd, err := tx.Conn().PgConn().Prepare(ctx, "", query, nil)
	if err == nil {
		var shape queriedShape
		if shape, err = shapeOf(sd); err == nil {
			return shape, nil
		}
	}
	return nil, err
}

// queryError keeps the text of Postgres' error about a query and drops its code: a missing table or grant of the query
// would be taken for one of the outbox.
func queryError(err error) error {
	if pgerr.Code(err) != "" {
		return errors.New("the query: " + err.Error())
	}
	return fmt.Errorf("the query: %w", err)
}

// readOnly runs do in a read-only transaction.
func (o *Operator) readOnly(ctx context.Context, conn *pgxpool.Conn, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, o.q(sql.IdleTimeout), audit.Timeout); err != nil {
				return err
			}
			return do(tx)
		})
}

// queried makes a statement on the rows of a query.
func queried(statement string, c Replay) string {
	return strings.NewReplacer("{query}", strings.TrimRight(c.Query, "; \t\r\n"), "{after}",
		strconv.FormatInt(c.After, 10)).Replace(statement)
}

// planQuery is PlanReplay of a query.
func (o *Operator) planQuery(ctx context.Context, c Replay) (p ReplayPlan, err error) {
	conn, err := o.db.Acquire(ctx)
	if err != nil {
		return p, err
	}
	defer conn.Release()
	err = o.readOnly(ctx, conn, func(tx pgx.Tx) error {
		shape, err := checkQuery(ctx, tx, c.Query)
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, queried(sql.ReplayCount, c)).Scan(&p.Events, &p.IDs, &p.Bytes, &p.Keys); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, queried(sql.ReplayRows, c), replayHead)
		if err != nil {
			return err
		}
		events, err := shape.read(rows, c.After+1)
		for i := range events {
			e := &events[i]
			head := ReplayEvent{
				Pos: c.After + int64(i) + 1, MessageID: e.ID, Tenant: e.Tenant, Topic: e.Topic,
				Key: e.Key, Type: e.Type, Bytes: len(e.Payload),
			}
			if e.Payload == nil {
				head.Bytes = -1
			}
			p.Head = append(p.Head, head)
		}
		return err
	})
	if err != nil {
		return p, queryError(err)
	}
	return p, nil
}

// queriedReplay appends the rows of a query.
type queriedReplay struct {
	conn   *pgxpool.Conn
	append outbox.Appender
	shape  queriedShape
	ahead  []event.Event // read, but not appended yet
}

// openQuery runs a query once and leaves its rows with the server, in their order: rows that are inserted meanwhile, by
// the replay or by others, are not among them, and no snapshot is kept during the replay.
func (o *Operator) openQuery(ctx context.Context, c Replay) (*queriedReplay, error) {
	if o.db.Config().MaxConns < 2 {
		return nil, errors.New("the pool has one connection, and a query needs another one: raise its MaxConns")
	}
	conn, err := o.db.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	// The events were valid before: limits of payloads and the inbox's window do not apply.
	q := &queriedReplay{conn: conn, append: outbox.Appender{Schema: o.schema.Name(), MaxPayload: -1, InboxWindow: -1}}
	err = o.readOnly(ctx, conn, func(tx pgx.Tx) (err error) {
		if q.shape, err = checkQuery(ctx, tx, c.Query); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, queried(sql.ReplayDeclare, c))
		return err
	})
	if err != nil {
		q.close()
		return nil, queryError(err)
	}
	return q, nil
}

// close ends the session, and with it the rows on the server.
func (q *queriedReplay) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = q.conn.Conn().Close(ctx) // the pool discards a closed connection
	q.conn.Release()
}

// step appends the next rows in a transaction, at most so many. It returns false if there are no more.
func (q *queriedReplay) step(ctx context.Context, most int, done *ReplayResult) (more bool, err error) {
	n := 0
	for size := 0; n < most && size < replayBytes; n++ {
		if n == len(q.ahead) {
			if err := q.fetch(ctx, done.Last+int64(n)); err != nil {
				return false, queryError(err)
			}
			if n == len(q.ahead) {
				break
			}
		}
		size += len(q.ahead[n].Payload) + len(q.ahead[n].Key)
	}
	if n == 0 {
		return false, nil
	}
	err = pgx.BeginFunc(ctx, q.conn, func(tx pgx.Tx) error { return q.append.Append(ctx, tx, q.ahead[:n]...) })
	if refused, ok := errors.AsType[*outbox.EventError](err); ok {
		err = fmt.Errorf("row %d: %s %s", done.Last+int64(refused.Index)+1, refused.Field, refused.Reason)
	}
	if err != nil {
		return false, fmt.Errorf("appending: %w", err)
	}
	done.Events, done.Last = done.Events+int64(n), done.Last+int64(n)
	q.ahead = slices.Delete(q.ahead, 0, n)
	return true, nil
}

// fetch reads the next rows; read is the number of rows before them.
func (q *queriedReplay) fetch(ctx context.Context, read int64) error {
	rows, err := q.conn.Query(ctx, sql.ReplayFetch)
	if err != nil {
		return err
	}
	events, err := q.shape.read(rows, read+1)
	if pgerr.Is(err, pgerr.InvalidCursorName) {
		return fmt.Errorf("they are kept in the session: connect to Postgres without a pooler in transaction mode: %w",
			err)
	}
	for i := range events {
		e := &events[i]
		if e.Headers == nil {
			e.Headers = map[string]string{}
		}
		e.Headers[event.HeaderReplay] = "true"
	}
	q.ahead = append(q.ahead, events...)
	return err
}
