//go:build !race

package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/effectonce/effectonce/relay/internal/delivery"
)

// Fates of a transaction.
const (
	txRuns        = iota
	txUnanswered  // it commits, and the reply is lost
	txNeverCame   // it is lost, and the sender cannot know that
	txStillToCome // its sender gives up, and it runs later
	txFails       // it is certainly refused
	txFates
)

var txFateNames = [txFates]string{
	"", ", committed, but the reply is lost", ", lost on its way", ", which runs later without a reply",
	", refused by the database",
}

// modelConn is a connection to the model's database. It runs a whole pipeline in one step.
type modelConn struct {
	m      *modelRun
	closed bool
}

// IsClosed implements pg.Conn.
func (c *modelConn) IsClosed() bool { return c.closed }

// Close implements pg.Conn.
func (*modelConn) Close(context.Context) error { return nil }

// errModelLost is the error that a session gets from a lost connection.
var errModelLost = errors.New("the model lost the connection")

// SendBatch implements pg.Conn.
func (c *modelConn) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	m := c.m
	fate := txRuns
	if statementName(b.QueuedQueries[0].SQL) == "begin" {
		if m.sends++; m.sends == m.failAt {
			fate = m.fate
		}
	}
	switch fate {
	case txNeverCame:
		return &modelResults{batch: b, err: errModelLost}
	case txStillToCome:
		m.s.ghost = m.world.ghosts.number(b)
		return &modelResults{batch: b, err: errModelLost}
	case txFails:
		return &modelResults{batch: b, err: &pgconn.PgError{
			Severity: "ERROR", SeverityUnlocalized: "ERROR",
			Code: "XX000",
		}}
	}
	results, err := m.execute(b)
	if fate == txUnanswered && err == nil {
		err = errModelLost
	}
	return &modelResults{batch: b, results: results, err: err}
}

// statementName returns the name in a statement's first line.
func statementName(sql string) string {
	const head = "-- relay: "
	if end := strings.IndexByte(sql, '\n'); end > len(head) {
		return sql[len(head):end]
	}
	return sql
}

// ghostTable numbers transactions that were sent but have not run, so that a state can refer to one.
type ghostTable struct {
	numbers map[string]uint16
	batches []*pgx.Batch
}

func (g *ghostTable) number(b *pgx.Batch) uint16 {
	var text strings.Builder
	for _, q := range b.QueuedQueries {
		fmt.Fprintln(&text, statementName(q.SQL), q.Arguments)
	}
	n, ok := g.numbers[text.String()]
	if !ok {
		if g.numbers == nil {
			g.numbers = map[string]uint16{}
		}
		g.batches = append(g.batches, b)
		n = uint16(len(g.batches))
		g.numbers[text.String()] = n
	}
	return n
}

// modelResults are the results of a batch.
type modelResults struct {
	batch   *pgx.Batch
	results []modelRows
	at      int
	err     error // after the results
}

// Exec implements pgx.BatchResults.
func (r *modelResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, nil }

// Query implements pgx.BatchResults.
func (r *modelResults) Query() (pgx.Rows, error) { return &r.results[r.at], nil }

// QueryRow implements pgx.BatchResults.
func (r *modelResults) QueryRow() pgx.Row { return &modelOne{&r.results[r.at]} }

// Tx implements pgx.BatchResults.
func (*modelResults) Tx() pgx.Tx { return nil }

// Close implements pgx.BatchResults.
func (r *modelResults) Close() error {
	for i, q := range r.batch.QueuedQueries {
		if i >= len(r.results) {
			break
		}
		r.at = i
		if q.Fn == nil {
			continue
		}
		if err := q.Fn(r); err != nil {
			return err
		}
	}
	return r.err
}

// modelOne is the first row of a result.
type modelOne struct{ rows *modelRows }

// Scan implements pgx.Row.
func (o *modelOne) Scan(to ...any) error {
	if !o.rows.Next() {
		return pgx.ErrNoRows
	}
	return o.rows.Scan(to...)
}

// modelRows is a result.
type modelRows struct {
	all [][]any
	at  int
}

// Close implements pgx.Rows.
func (*modelRows) Close() {}

// Err implements pgx.Rows.
func (*modelRows) Err() error { return nil }

// CommandTag implements pgx.Rows.
func (*modelRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// FieldDescriptions implements pgx.Rows.
func (*modelRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

// Next implements pgx.Rows.
func (r *modelRows) Next() bool {
	r.at++
	return r.at <= len(r.all)
}

// Values implements pgx.Rows.
func (r *modelRows) Values() ([]any, error) { return r.all[r.at-1], nil }

// RawValues implements pgx.Rows.
func (*modelRows) RawValues() [][]byte { return nil }

// Conn implements pgx.Rows.
func (*modelRows) Conn() *pgx.Conn { return nil }

// TypeMap implements pgx.Rows.
func (*modelRows) TypeMap() *pgtype.Map { return nil }

// Scan implements pgx.Rows.
func (r *modelRows) Scan(to ...any) error {
	row := r.all[r.at-1]
	if len(to) != len(row) {
		return fmt.Errorf("the model has %d columns, and %d are read", len(row), len(to))
	}
	for i, t := range to {
		if err := modelScan(t, row[i]); err != nil {
			return fmt.Errorf("column %d: %w", i, err)
		}
	}
	return nil
}

func modelScan(to, v any) error {
	ok := true
	switch to := to.(type) {
	case nil:
	case *int16:
		*to, ok = v.(int16)
	case *int32:
		*to, ok = v.(int32)
	case *int64:
		*to, ok = v.(int64)
	case *delivery.From:
		var n int16
		n, ok = v.(int16)
		*to = delivery.From(n)
	case *bool:
		*to, ok = v.(bool)
	case *string:
		*to, ok = v.(string)
	case *[]string:
		*to, ok = v.([]string)
	case *[]int16:
		*to, ok = v.([]int16)
	case *[]byte:
		*to, ok = v.([]byte)
	case *time.Time:
		*to, ok = v.(time.Time)
	case pgtype.UUIDScanner:
		var id uuid.UUID
		id, ok = v.(uuid.UUID)
		return errors.Join(to.ScanUUID(pgtype.UUID{Bytes: id, Valid: true}), scanned(ok, to, v))
	case pgtype.BytesScanner:
		var b []byte
		if s, is := v.(string); is {
			b = []byte(s)
		} else {
			b, ok = v.([]byte)
		}
		return errors.Join(to.ScanBytes(b), scanned(ok, to, v))
	default:
		panic(fmt.Sprintf("the model has no values of type %T", to))
	}
	return scanned(ok, to, v)
}

func scanned(ok bool, to, v any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("the model does not scan a %T into a %T", v, to)
}
