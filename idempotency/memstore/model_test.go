package memstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/explore"
)

// The model: two callers, a recoverer, a person, a sweeper and another command's caller use one key of the memory store
// with the production table. Each may crash between any two steps, any reply may be lost, any lease may end at any
// time.
//
// Callers work as the guard does: they save a step before they call the provider, under a lease that has not ended. An
// owner that finds no step knows that nothing happened, and may release the key.
//
// A fenced provider refuses a charge or query with a lower fence than it has seen. The other provider knows the
// downstream key, and charges once for it.

// variant is a configuration of the model.
type variant struct {
	rules    rules
	fenced   bool // the provider; otherwise it knows the downstream key
	rerun    bool // callers may take over an ended lease
	releases bool // the recoverer, if the provider did not charge; otherwise it continues the work
}

type phase uint8

const (
	idle       phase = iota
	unanswered       // its claim's reply was lost
	owner            // of the key, and has done nothing
	stepSaved        // before the provider's call
	charged          // by the provider
	notCharged       // as the provider answered
	noReply          // of the provider
)

const (
	callerA = iota
	callerB
	recoverer
	processCount
)

// process is a user of the key.
type process struct {
	phase phase
	token int64 // of its attempt; a new one for each
	open  bool  // an earlier attempt has saved a step
	lease store.Lease
}

// world is a state of the model.
type world struct {
	found     bool // e is in the store
	e         entry
	fence     int64
	tokens    int64
	processes [processCount]process
	charges   int   // of the provider
	maxFence  int64 // that the provider saw
	completed bool  // at any time
	violation string
}

// view is equal for equivalent worlds: it has fences by their order, tokens by their owner, and times by whether they
// have passed.
type view struct {
	found, stuck        bool
	stepSaved           bool
	situation           situation
	ownToken, open      [processCount]bool
	phases              [processCount]phase
	order               [processCount + 1]int
	ownLease            [processCount]bool // the entry's lease is the process's
	lease, due          bool
	charges             int
	completed, violated bool
}

var (
	modelNow     = time.Unix(1e9, 0)
	modelPast    = modelNow.Add(-time.Hour)
	modelKey     = idempotency.Key{Operation: "o", Value: "k"}
	otherCommand = idempotency.Fingerprint{Version: 1}
)

func (w *world) view() view {
	v := view{found: w.found, charges: w.charges, completed: w.completed, violated: w.violation != ""}
	fences := [processCount + 2]int64{}
	if w.found {
		v.situation, v.stuck, v.lease, v.due = w.e.situation(modelNow), w.e.Stuck, w.e.lease.After(modelNow),
			w.e.due.After(modelNow)
		fences[processCount], v.stepSaved = w.e.Fence, len(w.e.Progress.Steps) > 0
	}
	fences[processCount+1] = w.maxFence
	for i, p := range w.processes {
		v.phases[i] = p.phase
		if p.phase != idle {
			fences[i] = p.lease.Fence
			v.open[i] = p.open
			v.ownToken[i] = w.found && w.e.token == fmt.Sprint(p.token)
			v.ownLease[i] = w.found && w.e.token == p.lease.Token && w.e.Fence == p.lease.Fence
		}
	}
	for i := range v.order {
		for _, f := range fences {
			if f < fences[i] {
				v.order[i]++
			}
		}
	}
	return v
}

// store returns the store of a world.
func (v *variant) store(w *world) *Store {
	m := &Store{
		now: func() time.Time { return modelNow }, table: &v.rules, keys: map[idempotency.Key]*entry{},
		fence: w.fence,
	}
	if w.found {
		e := w.e
		m.keys[modelKey] = &e
	}
	return m
}

// call runs fn on a world's store, and copies the store's state back.
func (v *variant) call(w *world, fn func(m *Store)) {
	before := free
	if w.found {
		before = w.e.situation(modelNow)
	}
	m := v.store(w)
	fn(m)
	oldFence := w.e.Fence
	e := m.keys[modelKey]
	if w.found = e != nil; w.found {
		w.e = *e
	}
	w.fence = m.fence
	if w.found && w.e.Fence != oldFence && (before == leased || before == recovering) {
		w.violation = "a lease that has not ended was lost"
	}
	if w.found && (w.e.State == idempotency.Completed || w.e.State == idempotency.FailedReplayable) {
		w.completed = true
	}
}

// next emits the possible steps.
func (v *variant) next(w *world, emit func(explore.Step[world])) {
	step := func(fault bool, name string, change func(t *world)) {
		t := *w
		change(&t)
		emit(explore.Step[world]{Name: explore.Named(name), To: t, Fault: fault})
	}
	if w.violation != "" {
		return
	}
	v.timeSteps(w, step)
	for i := range w.processes {
		if i == recoverer {
			v.recovererSteps(w, step)
		} else {
			v.callerSteps(w, i, step)
		}
		if w.processes[i].phase != idle {
			step(true, fmt.Sprintf("%s crashes", name(i)), func(t *world) { t.processes[i] = process{} })
		}
		v.ownerSteps(w, i, step)
	}
	step(true, "another command's caller claims, and releases what it wins", func(t *world) {
		v.call(t, func(m *Store) {
			got, err := m.Claim(context.Background(), idempotency.Request{Key: modelKey, Fingerprint: otherCommand},
				store.ClaimOptions{Token: "other", Lease: time.Hour, Rerun: true})
			if err == nil && got.Won {
				_ = m.Release(context.Background(), got.Lease)
			}
		})
	})
	step(true, "the sweeper sweeps", func(t *world) {
		v.call(t, func(m *Store) { _, _ = m.Sweep(context.Background(), 10) })
	})
}

func name(i int) string { return []string{"A", "B", "the recoverer"}[i] }

type emitter func(fault bool, name string, change func(t *world))

// timeSteps emits the ends of leases, delays and bodies. A tombstone never ends, because a retry after it is a new
// request.
func (v *variant) timeSteps(w *world, step emitter) {
	if !w.found {
		return
	}
	if w.e.lease.After(modelNow) {
		step(false, "the lease ends", func(t *world) { t.e.lease = modelPast })
	}
	if w.e.due.After(modelNow) {
		step(false, "the delay is over", func(t *world) { t.e.due = modelPast })
	}
	if w.e.body.After(modelNow) {
		step(true, "the body is overdue", func(t *world) { t.e.body = modelPast })
	}
}

// callerSteps emits the steps of a caller that does not own the key.
func (v *variant) callerSteps(w *world, i int, step emitter) {
	p := w.processes[i]
	if p.phase != idle && p.phase != unanswered {
		return
	}
	for _, answered := range []bool{true, false} {
		text := fmt.Sprintf("%s claims", name(i))
		if p.phase == unanswered {
			text += " again, as its reply was lost"
		}
		if !answered {
			text += "; the reply is lost"
		}
		step(!answered, text, func(t *world) {
			q := &t.processes[i]
			if q.phase == idle {
				t.tokens++
				q.token = t.tokens
			}
			var got store.ClaimResult
			v.call(t, func(m *Store) {
				got, _ = m.Claim(context.Background(), idempotency.Request{Key: modelKey},
					store.ClaimOptions{Token: fmt.Sprint(q.token), Lease: time.Hour, Rerun: v.rerun})
			})
			switch {
			case !answered:
				q.phase = unanswered
			case got.Won:
				q.phase, q.lease, q.open = owner, got.Lease, len(got.Record.Progress.Steps) > 0
			default:
				*q = process{}
			}
		})
	}
}

// recovererSteps emits how the recoverer gets the key and asks the provider, and how a person claims a stuck key.
func (v *variant) recovererSteps(w *world, step emitter) {
	if w.processes[recoverer].phase == owner && !w.processes[recoverer].open {
		return // no call is open
	}
	if w.processes[recoverer].phase == owner {
		step(false, "the recoverer asks the provider", func(t *world) {
			p := &t.processes[recoverer]
			if v.fenced {
				t.maxFence = max(t.maxFence, p.lease.Fence)
			}
			p.phase = notCharged
			if t.charges > 0 {
				p.phase = charged
			}
		})
		step(true, "the recoverer asks the provider; the reply is lost",
			func(t *world) { t.processes[recoverer].phase = noReply })
		return
	}
	if w.processes[recoverer].phase != idle {
		return
	}
	claim := func(text string, get func(m *Store, token string) (store.ClaimResult, bool)) {
		step(false, text, func(t *world) {
			t.tokens++
			v.call(t, func(m *Store) {
				if got, won := get(m, fmt.Sprint(t.tokens)); won {
					t.processes[recoverer] = process{
						phase: owner, token: t.tokens, lease: got.Lease,
						open: len(got.Record.Progress.Steps) > 0,
					}
				}
			})
		})
	}
	claim("the recoverer gets a key", func(m *Store, token string) (store.ClaimResult, bool) {
		got, _ := m.Recover(context.Background(), store.RecoverOptions{Limit: 1, Lease: time.Hour, Token: token})
		if len(got) == 0 {
			return store.ClaimResult{}, false
		}
		return got[0], true
	})
	if w.found && w.e.Stuck {
		claim("a person claims the stuck key", func(m *Store, token string) (store.ClaimResult, bool) {
			got, _ := m.Claim(context.Background(), idempotency.Request{Key: modelKey},
				store.ClaimOptions{Token: token, Lease: time.Hour, Rerun: true})
			return got, got.Won
		})
	}
}

// ownerSteps emits the steps of the key's owner.
func (v *variant) ownerSteps(w *world, i int, step emitter) {
	p := w.processes[i]
	ctx := context.Background()
	write := func(fault bool, text string, then process, call func(m *Store) error) {
		step(fault, name(i)+" "+text, func(t *world) {
			v.call(t, func(m *Store) {
				newer := m.fence > p.lease.Fence && t.found
				err := call(m)
				if err == nil && newer {
					t.violation = "a late write was not refused: " + text
				}
				if err != nil && !errors.Is(err, store.ErrLeaseLost) {
					t.violation = err.Error()
				}
				if err != nil {
					then = process{}
				}
			})
			t.processes[i] = then
		})
	}
	finish := func(m *Store) error {
		err := m.Finish(ctx, p.lease, idempotency.Result{Code: 1}, idempotency.Retention{Tombstone: -1})
		if e := m.keys[modelKey]; err == nil && (e == nil || e.Result.Code != 1) {
			return errors.New("Finish succeeded, and its result is not kept")
		}
		return err
	}
	switch p.phase {
	case owner:
		write(true, "extends its lease", p, func(m *Store) error { return m.Extend(ctx, p.lease, time.Hour) })
		if !p.open {
			write(i != recoverer, "releases, because no step was saved", process{},
				func(m *Store) error { return m.Release(ctx, p.lease) })
		}
		if i != recoverer {
			then := p
			then.phase = stepSaved
			write(false, "saves that it will charge", then, func(m *Store) error {
				return m.Save(ctx, p.lease, store.Progress{
					Steps: []store.Step{{Name: "charge", State: store.StepSent}},
				})
			})
			write(true, "fails before it charged, and marks the outcome unknown", process{},
				func(m *Store) error { return m.MarkUnknown(ctx, p.lease, "", 0) })
		}
	case stepSaved:
		v.chargeSteps(w, i, step)
		if !p.open {
			write(true, "gets a retryable error, and releases", process{},
				func(m *Store) error { return m.Release(ctx, p.lease) })
		}
	case charged:
		write(false, "records the result", process{}, finish)
		write(true, "records the result; the reply is lost", p, finish)
	case notCharged:
		if v.releases {
			write(false, "releases, because nothing was charged", process{},
				func(m *Store) error { return m.Release(ctx, p.lease) })
		} else {
			v.chargeSteps(w, i, step)
		}
	case noReply:
		write(false, "marks the outcome unknown", process{},
			func(m *Store) error { return m.MarkUnknown(ctx, p.lease, "", time.Hour) })
		if i == recoverer {
			write(false, "postpones", process{},
				func(m *Store) error { return m.Postpone(ctx, p.lease, "", time.Hour, false) })
			write(false, "leaves it to a person", process{},
				func(m *Store) error { return m.Postpone(ctx, p.lease, "", 0, true) })
		}
	}
}

// chargeSteps emits the calls of the provider.
func (v *variant) chargeSteps(w *world, i int, step emitter) {
	for _, answered := range []bool{true, false} {
		text := name(i) + " charges"
		if !answered {
			text += "; the provider's reply is lost"
		}
		step(!answered, text, func(t *world) {
			p := &t.processes[i]
			switch {
			case v.fenced && p.lease.Fence < t.maxFence:
				*p = process{}
				return
			case v.fenced:
				t.maxFence = p.lease.Fence
				t.charges++
			default:
				t.charges = 1
			}
			p.phase = charged
			if !answered {
				p.phase = noReply
			}
		})
	}
}

// violation returns the promise that a world breaks, empty for none.
func violation(w *world) string {
	switch {
	case w.violation != "":
		return w.violation
	case w.charges > 1:
		return "the provider charged twice"
	case w.completed && (!w.found || w.e.State != idempotency.Completed && w.e.State != idempotency.Expired):
		return "a result was lost"
	case w.charges > 0 && !w.found:
		return "the provider charged, and the key is free"
	case w.found && w.e.State == idempotency.Completed && w.charges == 0:
		return "completed without an effect"
	}
	return ""
}

// settled reports whether a world needs no more steps: it is completed, or nothing happened and the key is free.
func settled(w *world) bool {
	return w.processes == [processCount]process{} && (w.completed || !w.found && w.charges == 0)
}

func (v *variant) explore() explore.Result {
	return explore.Run(explore.Model[world, view]{
		Start: []world{{}}, Next: v.next, Key: (*world).view, Bad: violation,
		Good: settled,
	})
}

// TestModel: in every reachable state there is at most one effect, no ended lease has released a key and no result is
// lost; from each state a settled one is reached without failures.
func TestModel(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]variant{
		"a fenced provider, the recoverer releases":   {rules: table, fenced: true, releases: true},
		"a fenced provider, the recoverer continues":  {rules: table, fenced: true},
		"a downstream key, the recoverer continues":   {rules: table},
		"a downstream key, an ended lease taken over": {rules: table, rerun: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := v.explore()
			if found.Violation != nil || !found.Complete {
				t.Fatal(found)
			}
			t.Log(found)
		})
	}
}

// TestModel_FindsReleaseWithoutFence: a provider that checks no fence answers that nothing happened, the recoverer
// releases the key, and the slow first owner charges. So a Probe may return NotHappened only if a late charge is
// impossible, and continuing the work is better than releasing its key.
func TestModel_FindsReleaseWithoutFence(t *testing.T) {
	t.Parallel()
	v := variant{rules: table, releases: true}
	if found := v.explore(); found.Violation == nil || found.Violation.What != "the provider charged, and the key "+
		"is free" {
		t.Fatal(found)
	}
}

// TestModel_FindsSeededBugs: the model finds each wrong cell of the table.
func TestModel_FindsSeededBugs(t *testing.T) {
	t.Parallel()
	for name, seed := range map[string]func(r *rules){
		"an ended lease is free":                       func(r *rules) { r[claim][lapsed] = grant },
		"an unknown outcome is free":                   func(r *rules) { r[claim][due] = grant },
		"an unknown outcome is run again":              func(r *rules) { r[claim][waiting] = takeOver },
		"a caller takes a running lease over":          func(r *rules) { r[claim][leased] = takeOver },
		"the recoverer takes an owner's lease over":    func(r *rules) { r[recover][leased] = assign },
		"the recoverer takes a recoverer's lease over": func(r *rules) { r[recover][recovering] = assign },
		"a completed key is recovered":                 func(r *rules) { r[recover][completed] = assign },
		"a late write succeeds during recovery":        func(r *rules) { r[lateWrite][recovering] = noop },
		"a late write succeeds under another lease":    func(r *rules) { r[lateWrite][leased] = noop },
		"a late owner releases another's key":          func(r *rules) { r[lateWrite][leased] = remove },
		"another command takes a completed key":        func(r *rules) { r[claimMismatch][completed] = grant },
		"another command takes an unknown one":         func(r *rules) { r[claimMismatch][due] = grant },
		"the sweeper removes an unknown key":           func(r *rules) { r[sweep][due] = remove },
		"the sweeper removes an abandoned key":         func(r *rules) { r[sweep][lapsed] = remove },
		"the sweeper removes a result":                 func(r *rules) { r[sweep][bodyOverdue] = remove },
		"an expired result is run again":               func(r *rules) { r[claim][expired] = grant },
		"recovery ignores an unknown key": func(r *rules) {
			r[recover][due] = skip
			r[claimRerun][due] = deny
		},
		"a person cannot claim a stuck key":         func(r *rules) { r[claimRerun][stuck] = deny },
		"a key marked unknown is free":              func(r *rules) { r[markUnknown][leased] = remove },
		"a result after the lease's end is dropped": func(r *rules) { r[succeed][due] = noop },
		"a result within the lease is dropped":      func(r *rules) { r[succeed][leased] = noop },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := variant{rules: table, fenced: true, releases: true}
			seed(&v.rules)
			found := v.explore()
			if found.Violation == nil {
				t.Fatalf("not found: %v", found)
			}
			t.Log(found)
		})
	}
}
