package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/outcome"
)

// runner runs an effect for the events with the given indexes and returns the indexes of the skipped events. With
// careful it puts every event under a savepoint.
type runner func(ctx context.Context, g *guardTx, events []event.Event, fresh []int, careful bool) (skipped []int,
	f *failure)

// graceCommit is how long a COMMIT that was sent may take after the caller's context ended. Cancelling it would only
// make its outcome unknown.
const graceCommit = 5 * time.Second

// work is the input and output of one transaction.
type work struct {
	events     []event.Event
	skip       map[uuid.UUID]bool // ids to record without running the effect
	careful    bool
	run        runner
	out        []Outcome       // the outcomes, when decide returns nil
	progress   *progressTarget // nil: the progress is not written
	assignment *assignment
	set        bool // the effects changed settings of their transaction
	only       bool // run no effect: the range is not written
	news       bool // only, and there are effects to run
}

// decide handles events in one transaction.
//
// Round trips: one for begin, state, both inserts and the check for parked events; those of the effect; one for commit.
// Two more if the consumer has parked keys or events, or if an event must be quarantined. One more if the progress is
// written. One more if an event is not new, and another if none is.
func (in *Inbox) decide(ctx context.Context, w *work) *failure {
	p, f := in.dedup.plan(w.events, w.assignment, false)
	if f != nil {
		return f
	}
	a := &aside{}
	f = in.transact(ctx, p, w.assignment, w.progress, func(conn *pgx.Conn, open bool) (_ did, f *failure) {
		if open || p.undecidable > 0 {
			if a, f = in.setAside(ctx, conn, p, w.events, in.cfg.ParkedPerKey > 0); f != nil {
				return did{}, f
			}
		}
		fresh := p.fresh(w.events, w.skip, a, w.out)
		if w.news = w.only && len(fresh) > 0; w.news {
			return did{}, &failure{kind: stale}
		}
		f = in.apply(ctx, conn, nil, w, fresh)
		return did{a.written > 0, w.set}, f
	})
	if f == nil {
		in.logQuarantined(w.events, a)
	}
	return f
}

// did is what was done in a transaction: whether it wrote rows of the inbox, and whether it changed settings.
type did struct{ wrote, set bool }

// transact records a plan, runs do and advances the progress, in one transaction. open says whether any event of the
// consumer is parked.
func (in *Inbox) transact(ctx context.Context, p *planned, a *assignment, target *progressTarget,
	do func(conn *pgx.Conn, open bool) (did, *failure),
) *failure {
	return in.withConn(ctx, func(conn *pgx.Conn) *failure {
		open, f := in.insert(ctx, conn, p, a)
		if f != nil {
			return f
		}
		did, f := do(conn, open)
		if f != nil {
			return f
		}
		if ctx.Err() != nil {
			return &failure{kind: canceled, err: ctx.Err()}
		}
		if !did.wrote && !p.wrote() {
			// Other transactions committed every row. If the wait of their COMMIT for the standby was cut, a row is
			// visible before it is durable. The barrier makes this COMMIT wait for the standby.
			if _, err := conn.Exec(ctx, sqlBarrier); err != nil {
				return in.classify(ctx, fmt.Errorf("inbox: writing a barrier after the rows of others: %w", err))
			}
		}
		// Last, because the partition's next owner writes the same row and must not wait for an effect of this process.
		// If an effect changed settings, such as its role, the progress is written later, by another session.
		if target != nil && !did.set {
			if f := in.pass(ctx, conn, target, a); f != nil {
				return f
			}
		}
		if f := in.commit(ctx, conn); f != nil {
			return f
		}
		a.setWatermarks(p.watermarks)
		return nil
	})
}

// withConn calls do with a connection of the pool. It rolls back a transaction that do leaves open.
func (in *Inbox) withConn(ctx context.Context, do func(conn *pgx.Conn) *failure) *failure {
	pooled, err := in.acquire(ctx)
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: getting a connection: %w", err))
	}
	in.transactions.Add(1)
	defer in.transactions.Add(-1)
	defer pooled.Release() // closes a connection that is still in a transaction
	conn := pooled.Conn()
	if err := pgsession.Texts(conn); err != nil {
		return &failure{kind: rejected, err: fmt.Errorf("inbox: %w", err)}
	}
	f := do(conn)
	if _, lasts := conn.PgConn().CustomData()[lastsKey]; lasts {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' && !conn.PgConn().IsBusy() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
		defer cancel()
		_, _ = conn.Exec(ctx, sqlRollback)
	}
	return f
}

// lastsKey marks a connection in which an effect has left more than its transaction: settings, locks or temporary
// tables of the session. It serves no other transaction.
const lastsKey = "effectonce: an effect left something in the session"

// errOverdue is the cause of an effect's context that Config.EffectTimeout ended.
var errOverdue = errors.New("the effect took longer than Config.EffectTimeout")

// apply runs the effects of the fresh events in the transaction that is open on conn, with EffectTimeout. tx is pgx's
// object for the transaction, or nil.
func (in *Inbox) apply(ctx context.Context, conn *pgx.Conn, tx pgx.Tx, w *work, fresh []int) *failure {
	if len(fresh) == 0 {
		return nil
	}
	before := in.db.Stat().CanceledAcquireCount()
	if in.cfg.EffectTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, in.cfg.EffectTimeout, errOverdue)
		defer cancel()
	}
	g := newGuardTx(conn, tx)
	skipped, f := w.run(ctx, g, w.events, fresh, w.careful)
	g.Close()
	if w.set = g.Set; g.Lasts {
		conn.PgConn().CustomData()[lastsKey] = true
	}
	switch {
	case f != nil:
		return starved(f, in.db, before)
	case conn.IsClosed(): // it is unknown which event ended it
		return &failure{
			kind: lost, index: -1, err: errors.New("inbox: the session ended while the effect had it"),
		}
	}
	for _, i := range skipped {
		w.out[i] = Skipped
	}
	return nil
}

func (in *Inbox) commit(ctx context.Context, conn *pgx.Conn) *failure {
	ctx, stop := sleep.Outlive(ctx, graceCommit)
	defer stop()
	tag, err := conn.Exec(ctx, sqlCommit)
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	switch {
	case err == nil:
		return nil
	case silent(err):
		return in.classify(ctx, err)
	case pgerr.Answered(err) && (pgerr.Away(err) || pgerr.CommitUnknown(err)):
		// A deferred trigger may raise any code. Should it be committed all the same, the next run finds its ids.
		return &failure{kind: lost, index: -1, err: err}
	case pgerr.CommitUnknown(err):
		err = fmt.Errorf("inbox: the outcome of COMMIT is unknown: %w", err)
		return &failure{kind: commitUnknown, index: -1, err: err}
	case pgerr.Retry(err):
		return &failure{kind: contended, err: err}
	}
	// A deferred constraint of the effect's tables: any of the events may have violated it.
	return &failure{kind: failed, index: -1, err: fmt.Errorf("COMMIT was rejected: %w", err), rejects: rejects(err)}
}

// insert begins the transaction, reads the state, records the events with the strategy, and checks whether the consumer
// has anything parked, in one round trip. The check comes after the insert: a transaction that parked one of the events
// held its row until the commit.
func (in *Inbox) insert(ctx context.Context, conn *pgx.Conn, p *planned, a *assignment) (open bool, f *failure) {
	var b pgx.Batch
	b.Queue(sqlBegin)
	b.Queue(in.q(sql.State), in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer, in.cfg.idleTimeout, a.place)
	in.dedup.queue(&b, p)
	b.Queue(in.q(sqlOpen), in.consumer)
	res := conn.SendBatch(ctx, &b)
	s, err := in.readInsert(res, p)
	if err == nil {
		err = res.QueryRow().Scan(&open)
	}
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if s != nil {
		in.state.Store(s)
	}
	switch {
	case errors.Is(err, errNotAllNew):
		a.metRepeat()
		return false, &failure{kind: stale}
	case err != nil && pgerr.Is(err, pgerr.CheckViolation):
		return false, &failure{kind: dayMissing, err: fmt.Errorf("inbox: a day of inbox_message is missing: %w", err)}
	case err != nil:
		return false, in.classify(ctx, fmt.Errorf("inbox: recording %d events: %w", len(p.ids), err))
	}
	// First of all: nothing that another database lacks, or has, is a reason to halt.
	database, err := in.databaseOf(ctx, conn, s.Started, a.beganIn())
	if err != nil {
		return false, in.classify(ctx, err)
	}
	if s.Floor < 0 { // Prepare registers it again
		database += fmt.Sprintf(", which does not know consumer %q any more", in.consumer)
	}
	if f := a.checkDatabase(database); f != nil {
		return false, f
	}
	if err := in.registeredAs(dedupNamed(s.Dedup)); err != nil {
		return false, &failure{kind: fatal, err: err}
	}
	// The state may have changed since the plan: the state read in this transaction decides.
	if !in.dedup.holds(p, s) {
		a.setWatermarks(nil)
		return false, &failure{kind: stale, err: errStale}
	}
	if in.cfg.Dedup != ByID {
		return open, nil
	}
	known, err := in.there(ctx, conn, p.repeats(), false)
	if err != nil {
		return false, in.classify(ctx, err)
	}
	if i, id := p.others(known); i >= 0 && in.cfg.OnFailure == Halt {
		return false, &failure{kind: bounded, index: i, err: outcome.Terminal(CodeOtherContent, otherEvent(id))}
	}
	return open, nil
}

func (in *Inbox) readInsert(res pgx.BatchResults, p *planned) (*state, error) {
	if _, err := res.Exec(); err != nil {
		return nil, err
	}
	s, err := stateOf(res.QueryRow())
	if err != nil {
		return nil, err
	}
	return s, in.dedup.read(res, p)
}
