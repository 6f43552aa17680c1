package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

// replays holds the running replays of this process, and the last ones that ended.
type replays struct {
	mu   sync.Mutex
	list []*replay // newest last
	last int       // id of the newest
}

// replay is a replay of this process.
type replay struct {
	id              int
	db, who, reason string
	choice          replayChoice
	began           time.Time
	cancel          context.CancelCauseFunc
	begun, over     chan struct{} // closed once it is in the audit, and once it has ended
	once            sync.Once     // closes begun

	mu    sync.Mutex
	done  operator.ReplayResult
	ended time.Time
	err   error // why it ended early
}

const (
	// keptReplays bounds the list.
	keptReplays = 20
	// replayTimeout bounds a replay, as in the command.
	replayTimeout = 24 * time.Hour
)

var (
	errReplaying  = errors.New("a replay of this outbox runs already: stop it, or wait until it ends")
	errNotRunning = errors.New("it does not run: it has ended, or never was here")
	errPagesEnd   = errors.New("the pages' process ended")
)

// startReplay starts a replay that outlives the request, and waits until it is in the audit.
func (q *request) startReplay(ctx context.Context, c replayChoice, reason string) (string, error) {
	o, err := q.db.outbox(q.who.Name)
	if err != nil {
		return "", err
	}
	lasting, stop := context.WithTimeout(context.WithoutCancel(q.Context()), replayTimeout)
	lasting, cancel := context.WithCancelCause(lasting)
	r := &replay{
		db: q.db.Name, who: q.who.Name, reason: reason, choice: c, began: time.Now(), cancel: cancel,
		begun: make(chan struct{}), over: make(chan struct{}),
	}
	if !q.h.replays.add(r) {
		stop()
		return "", errReplaying
	}
	go func() {
		defer stop()
		r.run(lasting, o)
		q.db.changed()
	}()
	return r.beginning(ctx, q.h)
}

// beginning waits until the replay is in the audit. A replay that has ended by then has begun as well.
func (r *replay) beginning(ctx context.Context, h *Handler) (string, error) {
	const runs = "It runs. The page of the archive shows how far it is."
	select {
	case <-r.begun:
		return runs, nil
	case <-r.over:
		select {
		case <-r.begun:
			return runs, nil
		default:
		}
		// Nothing was appended, even if the outcome of the audit's row is unknown.
		return "", fmt.Errorf("it has not begun, which the audit may not know: %s", r.view(h).Err)
	case <-ctx.Done():
		return "It waits for the relays, and begins when they leave it a moment. The page of the archive shows how " +
			"far it is.", nil
	}
}

func (r *replay) run(ctx context.Context, o *operator.Operator) {
	choice := r.choice.replay()
	choice.Progress = func(done operator.ReplayResult) {
		r.mu.Lock()
		r.done = done
		r.mu.Unlock()
		r.once.Do(func() { close(r.begun) })
	}
	done, err := o.Replay(ctx, choice, r.reason)
	r.mu.Lock()
	r.done, r.err, r.ended = done, err, time.Now()
	r.mu.Unlock()
	r.cancel(nil)
	close(r.over)
}

// stop ends the replay, and returns how far it came.
func (r *replay) stop(ctx context.Context, why error) (operator.ReplayResult, error) {
	r.cancel(why)
	select {
	case <-r.over:
	case <-ctx.Done():
		return operator.ReplayResult{}, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done, nil
}

func (r *replay) running() bool {
	select {
	case <-r.over:
		return false
	default:
		return true
	}
}

// running counts the running replays.
func (rs *replays) running() (n int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.list {
		if r.running() {
			n++
		}
	}
	return n
}

// add refuses a second replay of the same outbox.
func (rs *replays) add(r *replay) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, other := range rs.list {
		if other.db == r.db && other.running() {
			return false
		}
	}
	rs.last++
	r.id = rs.last
	rs.list = append(rs.list, r)
	for i := 0; len(rs.list) > keptReplays && i < len(rs.list); i++ {
		if !rs.list[i].running() {
			rs.list = append(rs.list[:i:i], rs.list[i+1:]...)
			i--
		}
	}
	return true
}

// of returns the running replay of an id; nil: none.
func (rs *replays) of(id int, db string) *replay {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.list {
		if r.id == id && r.db == db && r.running() {
			return r
		}
	}
	return nil
}

// end stops all replays, and waits until that is in the audit.
func (rs *replays) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rs.mu.Lock()
	list := append([]*replay{}, rs.list...)
	rs.mu.Unlock()
	for _, r := range list {
		if r.running() {
			r.cancel(errPagesEnd)
		}
	}
	for _, r := range list {
		_, _ = r.stop(ctx, errPagesEnd)
	}
}

// replayView is a replay on the page.
type replayView struct {
	ID          int
	DB, Who     string
	Reason      string
	Choice      replayChoice
	Began       time.Time
	Ended       time.Time // zero: running
	Events      int64
	Percent     int // of the events that the plan counted
	Err         string
	GoOn, Retry string // the form and the command that continue it; empty: it is complete
}

func (r *replay) view(h *Handler) replayView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := replayView{
		ID: r.id, DB: r.db, Who: r.who, Reason: r.reason, Choice: r.choice, Began: r.began, Ended: r.ended,
		Events: r.done.Events,
	}
	if r.choice.Events > 0 {
		v.Percent = int(min(100*r.done.Events/r.choice.Events, 100))
	}
	if r.err == nil {
		return v
	}
	v.Err = r.err.Error()
	if d := h.named(r.db); d != nil && !r.done.To.IsZero() {
		rest := r.choice
		rest.After, rest.To, rest.Events = r.done.Last, r.done.To, max(r.choice.Events-r.done.Events, 0)
		v.GoOn, v.Retry = rest.form(), d.withReason(append([]string{"replay"}, rest.flags()...)...)
	}
	return v
}

// views returns the replays in the viewer's Scope, newest first.
func (rs *replays) views(h *Handler, scope *Scope) (list []replayView) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := len(rs.list) - 1; i >= 0; i-- {
		if rs.list[i].choice.within(scope) {
			list = append(list, rs.list[i].view(h))
		}
	}
	return list
}
