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

// crash simulates the crash of a process at its first COMMIT: instead of sending it, it closes all connections and
// prevents new ones. It is a pgx tracer, because tracers run before a statement is sent, with TLS too.
type crash struct {
	die   context.CancelFunc // cancels the process's context
	armed atomic.Bool
	dead  atomic.Bool
}

var errDead = errors.New("outboxtest: the simulated process has crashed")

// install adds c to the tracers of a pool.
func (c *crash) install(cfg *pgxpool.Config) {
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
	c.crashAtCommit(conn, data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*crash) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer: a pipeline may contain the COMMIT.
func (c *crash) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		c.crashAtCommit(conn, q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*crash) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*crash) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (c *crash) crashAtCommit(conn *pgx.Conn, sql string) {
	if c.armed.Load() && commits(sql) {
		c.dead.Store(true)
		c.die()
	}
	if c.dead.Load() {
		// As after a kill, the server finds the connection closed and rolls back.
		_ = conn.PgConn().Conn().Close()
	}
}

// commits reports whether a statement is a COMMIT.
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
