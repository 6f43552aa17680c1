package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// copy writes the batch by COPY, which assigns ids row by row, in order, and streams the rows.
func (b *batch) copy(ctx context.Context, tx pgx.Tx) error {
	name, into := pgx.Identifier{table}, columns()
	if b.later {
		name, into = pgx.Identifier{scheduledTable}, append(into, "due")
	}
	if b.schema != "" {
		name = append(pgx.Identifier{b.schema}, name...)
	}
	src := &copyRows{batch: b, next: -1}
	n, err := tx.CopyFrom(ctx, name, into, src)
	if err != nil {
		return b.failed(err)
	}
	return took(n, len(b.events))
}

// copyRows passes the rows to COPY. pgx encodes a row before it asks for the next, so one slice serves all rows.
type copyRows struct {
	batch  *batch
	next   int
	values [11]any
}

func (s *copyRows) Next() bool {
	s.next++
	return s.next < len(s.batch.events)
}

func (s *copyRows) Err() error { return nil }

func (s *copyRows) Values() ([]any, error) {
	e, r := &s.batch.events[s.next], &s.batch.rows[s.next]
	var headers, payload, at any
	if r.headers != "" {
		headers = r.headers
	}
	if e.Payload != nil {
		payload = e.Payload
	}
	if !r.time.IsZero() {
		at = r.time
	}
	s.values = [...]any{
		pgtype.UUID{Bytes: r.id, Valid: true},
		r.source, e.Tenant, e.Topic, e.Key, e.Type, e.ContentType, headers,
		payload, at, due(e),
	}
	if !s.batch.later {
		return s.values[:10], nil
	}
	return s.values[:], nil
}
