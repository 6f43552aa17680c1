package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

// replays are those that run in this process, and the last ones that did.
type replays struct {
	mu   sync.Mutex
	list []*replay // the newest last
	last int       // the newest one's id
}

// replay is one of them.
type replay struct {
	id              int
	db, who, reason string
	choice          replayChoice
	began           time.Time
	cancel          context.CancelCauseFunc
	begun, over     chan struct{} // closed when the audit has it, and when it has ended
	once            sync.Once     // closes begun

	mu    sync.Mutex
	done  operator.ReplayResult
	ended time.Time
	err   error // why it ended early
}

const (
	// keptReplays are shown.
	keptReplays = 20
	// replayTimeout bounds one, as the command's does.
	replayTimeout = 24 * time.Hour
)

var (
	errReplaying  = errors.New("a replay of this outbox runs already: stop it, or wait until it ends")
	errNotRunning = errors.New("it does not run: it has ended, or never was here")
	errPagesEnd   = errors.New("the pages' process ended")
)

// startReplay begins one that outlives the request, and waits until the audit has it.
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

// beginning waits until the audit has it, and says so. One that is over by then has begun all the same.
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
		// Nothing was appended, even if nobody knows what became of the audit's row.
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

// stop ends it, and says how far it came.
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

// running counts them.
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

// add refuses a second one of the same outbox.
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

// of is the one that runs under an id, nil when none does.
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

// end stops all, and waits until the audit has it.
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

// replayView is one as it is shown.
type replayView struct {
	ID          int
	DB, Who     string
	Reason      string
	Choice      replayChoice
	Began       time.Time
	Ended       time.Time // zero: it runs
	Events      int64
	Percent     int // of what the plan has counted
	Err         string
	GoOn, Retry string // the form and the command that go on; empty: it is done
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

// views are all that are seen, the newest first.
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
