package inbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// kind says what a failed transaction means for the next one.
type kind uint8

const (
	canceled      kind = iota // the caller's context ended
	fatal                     // the consumer is registered otherwise: only another start helps
	rejected                  // the database rejects a statement of the inbox, or of every effect: a person must look
	conflict                  // lost against another transaction
	contended                 // the same, in the effect or at COMMIT
	away                      // the database
	lost                      // the session ended while the effect had it: the database's doing, or the effect's
	commitUnknown             // it may have happened
	dayMissing                // a partition is not there
	stale                     // the cached state was old: the plan put an id into the wrong table
	refused                   // the id at index may not be decided
	unsure                    // the event at index may have been applied: it is given up without a run
	bounded                   // the list for the event at index is full
	skipping                  // the effect skipped after it had written
	failed                    // the effect; index -1: any of the events
	moved                     // the database is another one than the partition began with
)

// failure is why a transaction was not committed, or not known to be.
type failure struct {
	kind  kind
	index int   // of the event, where one is meant
	skips []int // skipping: events to leave out
	err   error

	rejects bool // failed: the database could not run a statement of the effect or of its triggers
}

// maybe: what failed so may have happened all the same, where it is a statement outside of a transaction or a COMMIT.
func (f *failure) maybe() bool {
	return f.kind == canceled || f.kind == away || f.kind == commitUnknown
}

// runner runs an effect for the events with the given indexes and returns which of them it skipped. careful asks it to
// put every event behind a savepoint.
type runner func(ctx context.Context, g *guardTx, events []event.Event, fresh []int, careful bool) (skipped []int,
	f *failure)

// graceCommit is how long a COMMIT that was sent may take after the caller's context ended: cutting it would only make
// its outcome unknown.
const graceCommit = 5 * time.Second

// work is what one transaction decides.
type work struct {
	events  []event.Event
	skip    map[uuid.UUID]bool // recorded without their effect
	careful bool
	run     runner
	out     []Outcome // the outcomes, when decide returns nil
	pass    *passing  // nil: the progress stays as it is
	guard   *guard    // knows which database the partition began with
}

// passing is where a partition's progress moves with the transaction.
type passing struct {
	partitionName
	next int64
}

// decide handles events in one transaction.
//
// Round trips: one for begin, state, both inserts and the look for open events; the effect's; one for commit. Two more
// when the consumer has parked keys or events, or there is one to quarantine; one more as long as the progress is
// written, and one where nothing is new.
func (in *Inbox) decide(ctx context.Context, w *work) *failure {
	p, f := in.dedup.plan(w.events, w.guard, false)
	if f != nil {
		return f
	}
	conn, err := in.db.Acquire(ctx)
	if err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: getting a connection: %w", err))
	}
	defer release(ctx, conn)
	open, f := in.insert(ctx, conn.Conn(), p, w.guard)
	if f == nil {
		f = w.guard.stays(p.home)
	}
	if f != nil {
		return f
	}
	a := &aside{}
	if open || p.refused > 0 {
		if a, f = in.setAside(ctx, conn.Conn(), p, w.events); f != nil {
			return f
		}
	}
	fresh := p.fresh(w.events, w.skip, a, w.out)
	if len(fresh) > 0 {
		g := newGuardTx(conn.Conn(), nil)
		skipped, f := in.timed(ctx, w.run, g, w.events, fresh, w.careful)
		g.Close()
		if f == nil && conn.Conn().IsClosed() {
			f = lostSession()
		}
		if f != nil {
			return f
		}
		for _, i := range skipped {
			w.out[i] = Skipped
		}
	}
	if ctx.Err() != nil {
		return &failure{kind: canceled, err: ctx.Err()}
	}
	if !p.wrote() && a.written == 0 {
		// Every row was there, committed by others, and seen before it is safe where a commit's wait for its standby
		// was cut.
		if f := in.barrier(ctx, conn.Conn()); f != nil {
			return f
		}
	}
	if f := in.passAndCommit(ctx, conn.Conn(), w.pass); f != nil {
		return f
	}
	w.guard.setMarks(p.marks)
	in.tellAside(w.events, a)
	return nil
}

// errOverdue is the cause of an effect's context that ended with Config.EffectTimeout.
var errOverdue = errors.New("the effect took longer than Config.EffectTimeout")

// timed runs effects under their deadline.
func (in *Inbox) timed(ctx context.Context, run runner, g *guardTx, events []event.Event, fresh []int, careful bool) (
	[]int, *failure,
) {
	if in.cfg.EffectTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, in.cfg.EffectTimeout, errOverdue)
		defer cancel()
	}
	return run(ctx, g, events, fresh, careful)
}

// barrier makes the open transaction's COMMIT wait for all that was committed before it.
func (in *Inbox) barrier(ctx context.Context, conn *pgx.Conn) *failure {
	if _, err := conn.Exec(ctx, sqlBarrier); err != nil {
		return in.classify(ctx, fmt.Errorf("inbox: writing a barrier behind the rows of others: %w", err))
	}
	return nil
}

// release gives the connection back without a transaction on it; the pool closes one that still has its transaction.
func release(ctx context.Context, conn *pgxpool.Conn) {
	if c := conn.Conn(); !c.IsClosed() && c.PgConn().TxStatus() != 'I' && !c.PgConn().IsBusy() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceCommit)
		defer cancel()
		_, _ = c.Exec(ctx, sqlRollback)
	}
	conn.Release()
}

// passAndCommit moves the progress at the very end, where there is one to move: its row is also what the partition's
// next owner writes, who must not wait for an effect of ours.
func (in *Inbox) passAndCommit(ctx context.Context, conn *pgx.Conn, pass *passing) *failure {
	if pass != nil {
		_, err := conn.Exec(ctx, in.q(sqlPass), in.consumer, pass.topic, pass.id, pass.next)
		if err != nil {
			return in.classify(ctx, fmt.Errorf("inbox: moving the progress of %s-%d: %w", pass.topic, pass.id, err))
		}
	}
	return in.commit(ctx, conn)
}

func (in *Inbox) commit(ctx context.Context, conn *pgx.Conn) *failure {
	ctx, stop := outlive(ctx, graceCommit)
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
	case pgerr.CommitUnknown(err):
		return &failure{kind: commitUnknown, err: fmt.Errorf("inbox: the outcome of COMMIT is unknown: %w", err)}
	case pgerr.Retry(err):
		return &failure{kind: contended, err: err}
	case pgerr.Away(err):
		return &failure{kind: away, err: err}
	}
	// A deferred constraint of the effect's tables: any of the events.
	return &failure{kind: failed, index: -1, err: fmt.Errorf("COMMIT was refused: %w", err), rejects: rejects(err)}
}

// outlive returns a context that ends a while after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-longer.Done():
		}
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// planned is what one transaction does with its events: which id goes to which table, or which numbers are new.
type planned struct {
	ids      []planID // by id: sorted by it, then by index, for inserts in another order deadlock
	inserted int
	refused  int    // how many nobody can decide
	home     string // the database that the transaction met
	queued   int    // by id: statements that insert

	// Of a watermark.
	name   partitionName
	marks  *marks // how far the numbers are decided when it is committed
	moved  []int  // of marks.of: those of which the transaction replaces the row
	lost   bool   // another transaction has moved one of them
	lookup bool   // what ids know counts as well
	aged   bool   // and so does their age
}

// wrote: the transaction has rows of its own, so that its COMMIT waits for the standby.
func (p *planned) wrote() bool { return p.inserted > 0 || len(p.moved) > 0 }

type planID struct {
	id    uuid.UUID
	index int32
	place place
	isNew bool
}

// plan puts each id into its table.
func (s *state) plan(events []event.Event, windowDays days.Number, ahead int, halt bool) (*planned, *failure) {
	p := &planned{ids: make([]planID, len(events))}
	for i := range events {
		e := &events[i]
		if e.ID == uuid.Nil {
			return nil, &failure{kind: refused, index: i, err: errNoID}
		}
		where := s.place(e.ID, windowDays, ahead)
		if where.undecidable() {
			if halt {
				return nil, &failure{kind: refused, index: i, err: refusal(where, e, *s, windowDays)}
			}
			p.refused++
		}
		p.ids[i] = planID{id: e.ID, index: int32(i), place: where}
	}
	p.sort()
	return p, nil
}

// sort brings the ids into the order in which they are inserted.
func (p *planned) sort() {
	slices.SortFunc(p.ids, func(a, b planID) int {
		if c := bytes.Compare(a.id[:], b.id[:]); c != 0 {
			return c
		}
		return cmp.Compare(a.index, b.index)
	})
}

var (
	errNoID  = errors.New("it has no id: events must come from event.Decode, or carry one")
	errStale = errors.New("inbox: what the plan was made from has changed")
)

// newIDs is the text of the uuid[] of the ids that are new.
func (p *planned) newIDs() string {
	ids := make([]uuid.UUID, 0, p.inserted)
	for i := range p.ids {
		if p.ids[i].isNew {
			ids = append(ids, p.ids[i].id)
		}
	}
	return uuidArray(ids)
}

// holds: by what a transaction read for itself, every id is where the plan put it.
func (p *planned) holds(s *state, windowDays days.Number, ahead int) bool {
	for i := range p.ids {
		if s.place(p.ids[i].id, windowDays, ahead) != p.ids[i].place {
			return false
		}
	}
	return true
}

// new notes that an id was inserted; false: it was not sent. Of an id that stands twice, the first in log order is the
// new one.
func (p *planned) new(id uuid.UUID) bool {
	i, found := slices.BinarySearchFunc(p.ids, id, func(a planID, b uuid.UUID) int {
		return bytes.Compare(a.id[:], b[:])
	})
	if found {
		p.ids[i].isNew = true
		p.inserted++
	}
	return found
}

// array is the text of the uuid[] of a table's ids, each once, or "" for none.
func (p *planned) array(where place) string {
	b := make([]byte, 0, 2+37*len(p.ids))
	for i := range p.ids {
		if p.ids[i].place != where || i > 0 && p.ids[i].id == p.ids[i-1].id {
			continue
		}
		if b = append(b, ','); len(b) == 1 {
			b[0] = '{'
		}
		text, _ := p.ids[i].id.MarshalText()
		b = append(b, text...)
	}
	if len(b) == 0 {
		return ""
	}
	return string(append(b, '}'))
}

// insert begins the transaction, reads the state, records the events as the strategy has it and looks whether anything
// of the consumer is open, in one round trip. The record comes before the look, for whoever parked one of them held its
// row until that was committed.
func (in *Inbox) insert(ctx context.Context, conn *pgx.Conn, p *planned, g *guard) (open bool, f *failure) {
	var b pgx.Batch
	b.Queue(sqlBegin)
	b.Queue(in.q(sql.State), in.cfg.lockTimeout, in.cfg.statementTimeout, in.consumer, in.cfg.idleTimeout)
	b.Queue(in.q(sqlHome))
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
	case err != nil && pgerr.Is(err, pgerr.CheckViolation):
		return false, &failure{kind: dayMissing, err: fmt.Errorf("inbox: a day of inbox_message is missing: %w", err)}
	case err != nil:
		return false, in.classify(ctx, fmt.Errorf("inbox: recording %d events: %w", len(p.ids), err))
	case s.Floor < 0:
		return false, &failure{kind: fatal, err: fmt.Errorf("inbox: the row of %q in inbox_consumer was deleted "+
			"while it runs: start again", in.consumer)}
	}
	if err := in.registeredAs(dedupNamed(s.Dedup)); err != nil {
		return false, &failure{kind: fatal, err: err}
	}
	// The state may have changed since the plan: only the one read in this transaction counts.
	if !in.dedup.holds(p, s) {
		g.setMarks(nil)
		return false, &failure{kind: stale, err: errStale}
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
	if err := res.QueryRow().Scan(&p.home); err != nil {
		return s, err
	}
	return s, in.dedup.read(res, p)
}

// mark notes which ids were inserted.
func (p *planned) mark(rows pgx.Rows) error {
	defer rows.Close()
	var id pgtype.UUID
	for rows.Next() {
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if !p.new(id.Bytes) {
			return fmt.Errorf("the database returned id %s, which was not sent", uuid.UUID(id.Bytes))
		}
	}
	return rows.Err()
}

// fresh writes the outcomes that are known before the effect runs, and returns the indexes of the new events in log
// order.
func (p *planned) fresh(events []event.Event, skip map[uuid.UUID]bool, a *aside, out []Outcome) []int {
	fresh := make([]int, 0, p.inserted)
	for i := range p.ids {
		n := int(p.ids[i].index)
		switch o, set := a.outcomes[n]; {
		case set:
			out[n] = o
		case !p.ids[i].isNew:
			out[n] = Duplicate
		case skip[p.ids[i].id]:
			out[n] = Skipped
		default:
			out[n] = Applied
			fresh = append(fresh, n)
		}
	}
	slices.Sort(fresh)
	return fresh
}

// lostSession: which of the events it was is not known.
func lostSession() *failure {
	return &failure{kind: lost, index: -1, err: errors.New("inbox: the session ended while the effect had it")}
}

// silent: the server ended the session of a transaction that said nothing for too long. It did not commit, although a
// COMMIT may be what is answered so.
func silent(err error) bool {
	return pgerr.Is(err, pgerr.IdleInTransaction) || pgerr.Is(err, pgerr.TransactionTimeout)
}

// rejects: a statement names what the database does not have, or may not touch it (class 42).
func rejects(err error) bool { return strings.HasPrefix(pgerr.Code(err), "42") }

// classify sorts an error of the inbox's own statements.
func (in *Inbox) classify(ctx context.Context, err error) *failure {
	switch {
	case ctx.Err() != nil:
		return &failure{kind: canceled, err: ctx.Err()}
	case pgerr.Retry(err), pgerr.Is(err, pgerr.QueryCanceled):
		return &failure{kind: conflict, err: err}
	case silent(err):
		return &failure{kind: lost, index: -1, err: err}
	case pgerr.Is(err, pgerr.ReadOnlyTransaction), pgerr.Is(err, pgerr.ObjectNotInState):
		// A standby. Its connections would outlive the moment in which it was reached.
		in.db.Reset()
		return &failure{kind: away, err: err}
	case pgerr.Away(err):
		return &failure{kind: away, err: err}
	}
	return &failure{kind: rejected, err: granting(err)}
}

// grantError is an error of the inbox's own statements for which a grant is missing.
type grantError struct{ error }

// Error says where the grants are.
func (e *grantError) Error() string {
	return e.error.Error() + " (`relay migrate --roles --print` has the grants that each role needs)"
}

// Unwrap returns what Postgres said.
func (e *grantError) Unwrap() error { return e.error }

func granting(err error) error {
	if _, said := errors.AsType[*grantError](err); said || !pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return err
	}
	return &grantError{err}
}
