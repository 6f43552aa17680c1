package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
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

// beginning waits until the replay is in the audit. A replay that has ended by then has begun as well.
func (r *replay) beginning(ctx context.Context) (string, error) {
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
		r.mu.Lock()
		defer r.mu.Unlock()
		return "", fmt.Errorf("it has not begun, which the audit may not know: %w", r.err)
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
func (rs *replays) end(ctx context.Context) {
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

func (r *replay) view(named func(string) *reads.Database) replayView {
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
	if d := named(r.db); d != nil && !r.done.To.IsZero() {
		rest := r.choice
		rest.After, rest.To, rest.Events = r.done.Last, r.done.To, max(r.choice.Events-r.done.Events, 0)
		v.GoOn, v.Retry = rest.form(), d.WithReason(append([]string{"replay"}, rest.flags()...)...)
	}
	return v
}

// views returns the replays in the viewer's Scope, newest first.
func (rs *replays) views(named func(string) *reads.Database, scope *Scope) (list []replayView) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := len(rs.list) - 1; i >= 0; i-- {
		if rs.list[i].choice.within(scope) {
			list = append(list, rs.list[i].view(named))
		}
	}
	return list
}

// replayChoice selects the events of a replay. Forms carry it.
type replayChoice struct {
	From, To    time.Time
	Topic       string
	Key, Tenant *string
	Type        string
	After       int64
	Rate        int
	Events      int64 // that the plan has counted
}

func (c replayChoice) replay() operator.Replay {
	return operator.Replay{
		From: c.From, To: c.To, Topic: c.Topic, Key: c.Key, Tenant: c.Tenant, Type: c.Type, After: c.After,
		Rate: c.Rate,
	}
}

// within reports whether all events of the choice are in a Scope.
func (c replayChoice) within(s *Scope) bool {
	return s.whole(c.Topic) || c.Tenant != nil && s.sees(*c.Tenant, c.Topic)
}

// form encodes the choice for a hidden field.
func (c replayChoice) form() string {
	b, _ := json.Marshal(c) // times, texts and numbers
	return format.B64(string(b))
}

func readChoice(form string) (c replayChoice, err error) {
	text, err := format.UnB64(form)
	if err == nil {
		err = json.Unmarshal([]byte(text), &c)
	}
	return c, err
}

// flags returns the flags of `relay replay` for the choice.
func (c replayChoice) flags() []string {
	flags := []string{
		"--from=" + c.From.UTC().Format(time.RFC3339Nano), "--to=" + c.To.UTC().Format(time.RFC3339Nano),
		"--topic=" + c.Topic,
	}
	for name, value := range map[string]*string{"--key=": c.Key, "--tenant=": c.Tenant} {
		if value != nil {
			flags = append(flags, name+*value)
		}
	}
	slices.Sort(flags[3:])
	if c.Type != "" {
		flags = append(flags, "--type="+c.Type)
	}
	if c.After > 0 {
		flags = append(flags, "--after="+fmt.Sprint(c.After))
	}
	if c.Rate > 0 {
		flags = append(flags, "--rate="+fmt.Sprint(c.Rate))
	}
	return flags
}
