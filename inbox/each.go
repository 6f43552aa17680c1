package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/redact"
)

// errApart is why a run of several events begins again with one: what an event set would hold for the others.
var errApart = errors.New("inbox: an effect changes settings of its transaction")

// eachRunner runs an effect for one event at a time, so that a failed event is known without splitting the batch. Each
// event has a transaction object of its own, which is closed after its effect.
func eachRunner(do Effect) runner {
	return func(ctx context.Context, g *guardTx, events []event.Event, fresh []int, careful bool) (skipped []int,
		f *failure,
	) {
		n := 0 // the effect that runs
		if !returns(func() {
			began := time.Now()
			for ; n < len(fresh) && f == nil; n++ {
				at := time.Now()
				var skip bool
				if skip, f = runOne(ctx, g, events, fresh[n], careful, do); skip {
					skipped = append(skipped, fresh[n])
				}
				if f != nil && errors.Is(f.err, errOverdue) && time.Since(at) < time.Since(began)/2 {
					f.index = -1 // the events before it took the time
				}
				if f == nil && g.Set && len(fresh) > 1 {
					f = &failure{kind: apart, err: errApart}
				}
			}
		}) {
			f = effectFailure(ctx, g, g.check(errGoexit), fresh[n])
		}
		return skipped, f
	}
}

// runOne runs the effect of events[i] and reports whether it skipped the event.
func runOne(ctx context.Context, g *guardTx, events []event.Event, i int, careful bool, do Effect) (skip bool,
	f *failure,
) {
	own, e := g.next(), lend(events[i])
	var savepoint pgx.Tx
	var err error
	if careful {
		if savepoint, err = own.Begin(ctx); err != nil {
			return false, effectFailure(ctx, g, err, i)
		}
	}
	err = own.check(recovered(func() error { return do(ctx, own, e) }))
	skip = skips(err)
	switch {
	case !skip && err != nil:
	case savepoint == nil && skip && own.Touched:
		// Only the writes of this event must be rolled back: run the batch again with savepoints.
		return false, &failure{
			kind: skipping,
			err:  fmt.Errorf("event %s was skipped after its effect had used the transaction", e.ID),
		}
	case savepoint == nil:
		return skip, nil
	case skip:
		err = savepoint.Rollback(ctx)
	default:
		err = savepoint.Commit(ctx)
	}
	if err != nil {
		return false, effectFailure(ctx, g, err, i)
	}
	return skip, nil
}

// batchRunner runs an effect for all new events at once. The effect gets a copy of the slice and may sort it.
func batchRunner(do BatchEffect) runner {
	return func(ctx context.Context, g *guardTx, events []event.Event, fresh []int, _ bool) (skipped []int,
		f *failure,
	) {
		batch := make([]event.Event, len(fresh))
		for n, i := range fresh {
			batch[n] = lend(events[i])
		}
		err := guarded(g, func() error { return do(ctx, g, batch) })
		if err == nil {
			return nil, nil
		}
		return nil, batchFailure(ctx, g, err, events, fresh)
	}
}

// lend returns the event for one run of an effect, which may work in place: another run, and the list of parked events,
// get what was read.
func lend(e event.Event) event.Event {
	e.Payload, e.Headers = bytes.Clone(e.Payload), maps.Clone(e.Headers)
	return e
}

// batchFailure finds the events that the error of a batch effect names. Of several failed events it takes the first in
// log order: no later event may be decided before it.
func batchFailure(ctx context.Context, g *guardTx, err error, events []event.Event, fresh []int) *failure {
	whole := effectFailure(ctx, g, err, -1)
	if whole.kind != failed {
		return whole
	}
	var skipped []int
	for _, of := range named(err, nil) {
		i := slices.IndexFunc(fresh, func(i int) bool {
			return events[i].ID == of.id && events[i].Position == of.position
		})
		switch {
		case i < 0:
			whole.err = fmt.Errorf("inbox.Of: event %s is none of a batch of %d: %w", of.id, len(fresh), err)
			return whole
		case skips(of.err):
			skipped = append(skipped, fresh[i])
		case whole.index < 0 || fresh[i] < whole.index:
			whole.index, whole.err = fresh[i], of.err
		}
	}
	switch {
	case whole.index >= 0:
	case !skips(err):
	case len(skipped) > 0:
		return &failure{kind: skipping, skips: skipped, err: err}
	default:
		return &failure{kind: skipping, skips: fresh, err: err}
	}
	return whole
}

// errGoexit is the error of an effect that ends its goroutine, as assertions of test libraries do.
var errGoexit = errors.New("the effect called runtime.Goexit")

// guarded calls an effect, turns a panic and the end of its goroutine into an error, and checks the state of the
// transaction.
func guarded(g *guardTx, do func() error) error {
	err := errGoexit
	returns(func() { err = recovered(do) })
	return g.check(err)
}

// returns calls do in a goroutine of its own, which an effect may end, and reports whether do has returned: the
// partition's goroutine would end without a word. A panic goes on in the caller's, where it can be recovered.
func returns(do func()) (returned bool) {
	var thrown any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { thrown = recover() }()
		do()
		returned = true
	}()
	<-done
	if thrown != nil {
		panic(thrown)
	}
	return returned
}

// recovered calls an effect and turns a panic into an error. It removes quotes of the event from the errors of
// libraries, because callers log, store or show the text.
func recovered(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return redact.Error(do())
}

// panicError is the panic of an effect. The stack is only logged.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return "the effect panicked" + redact.Panic(e.value) }

func (e *panicError) Unwrap() error {
	err, _ := e.value.(error)
	return err
}

// effectFailure tells errors of the event from errors of the database. Errors of the database take precedence over the
// class that the effect gave: a deadlock says nothing about the event, whatever error wraps it.
func effectFailure(ctx context.Context, g *guardTx, err error, index int) *failure {
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	gone := g.Raw.IsClosed() && !ended && (pgerr.Code(err) == "" || pgerr.Away(err) || silent(err))
	aborted := !g.Raw.IsClosed() && g.Raw.PgConn().TxStatus() == 'E'
	switch {
	case errors.Is(context.Cause(ctx), errOverdue):
		return &failure{kind: failed, index: index, err: fmt.Errorf("%w: %w", errOverdue, err)}
	case ctx.Err() != nil:
		return &failure{kind: canceled, err: ctx.Err()}
	case g.Broken:
		return &failure{kind: failed, index: index, err: err}
	case gone:
		return &failure{kind: lost, index: index, err: err}
	case aborted && pgerr.Away(err):
		// The server has answered this session, so it may be the statement: resources, or another server behind it.
		return &failure{kind: lost, index: index, err: err}
	case aborted && pgerr.Retry(err):
		return &failure{kind: contended, err: err}
	}
	return &failure{kind: failed, index: index, err: err, rejects: aborted && rejects(err)}
}
