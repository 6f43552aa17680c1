package outboxtest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgxpool"
)

// crash ends a process at its first COMMIT: instead of sending it, every connection is cut, and no new one can be made.
// It is a tracer of pgx, because that is told of a statement before it is sent, with TLS too.
type crash struct {
	die   context.CancelFunc // ends the context of whatever the process does
	armed atomic.Bool
	dead  atomic.Bool
}

var errDead = errors.New("outboxtest: this process has crashed")

// trace makes the connections of a pool tell of their statements, the tracer that is there included.
func (c *crash) trace(cfg *pgxpool.Config) {
	if tracer := cfg.ConnConfig.Tracer; tracer != nil {
		cfg.ConnConfig.Tracer = multitracer.New(tracer, c)
	} else {
		cfg.ConnConfig.Tracer = c
	}
	before := cfg.BeforeConnect
	cfg.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) error {
		switch {
		case c.dead.Load():
			return errDead
		case before != nil:
			return before(ctx, conn)
		}
		return nil
	}
}

// TraceQueryStart implements pgx.QueryTracer.
func (c *crash) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.look(conn, data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*crash) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer: a COMMIT may come at the end of a pipeline.
func (c *crash) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		c.look(conn, q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*crash) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*crash) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (c *crash) look(conn *pgx.Conn, sql string) {
	if c.armed.Load() && commits(sql) {
		c.dead.Store(true)
		c.die()
	}
	if c.dead.Load() {
		// Closing is what a kill does to a connection: the server finds it gone and rolls back.
		_ = conn.PgConn().Conn().Close()
	}
}

// commits reports whether a statement ends its transaction well.
func commits(sql string) bool {
	var text strings.Builder
	for line := range strings.Lines(sql) {
		line, _, _ = strings.Cut(line, "--")
		text.WriteString(line + " ")
	}
	words := strings.FieldsFunc(strings.ToLower(text.String()),
		func(r rune) bool { return strings.ContainsRune(" \t\r\n;", r) })
	return len(words) > 0 && (words[0] == "commit" || words[0] == "end")
}
