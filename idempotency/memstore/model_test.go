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

// The model: two callers, a recoverer, a person, a sweeper and another command's caller on one key of the memory store,
// which goes by the production table. Anybody may vanish between any two steps, any reply may be lost, and every lease
// may end at any time. The provider that the work calls keeps a ledger.
//
// Callers do as the guard does: that they are about to call the provider is saved before, under a lease that runs; who
// finds no such note, knows that nothing happened, and may free the key.
//
// The provider is one of two. A fenced provider refuses a fence that is lower than one it has seen, in a charge or in a
// question; the other one knows the downstream key, and books once for it however often it is asked.

// variant is what is different between runs of the model.
type variant struct {
	rules  rules
	fenced bool // the provider; otherwise it goes by the downstream key
	rerun  bool // callers may take an ended lease over
	// frees: what the recoverer does when the provider says that nothing happened: it releases the key. Otherwise it
	// goes on with the work itself.
	frees bool
}

type phase uint8

const (
	idle phase = iota
	unsure
	holds   // it has the key, and has done nothing
	noted   // it has saved that it will call the provider
	booked  // the provider has booked
	denied  // the provider says that nothing was booked
	unclear // the provider did not answer
)

const (
	callerA = iota
	callerB
	recoverer
	processes
)

// process is one that works at the key.
type process struct {
	phase phase
	token int64 // of its attempt; a new one for each
	open  bool  // a former attempt has noted its call
	lease store.Lease
}

// world is a state of the model.
type world struct {
	there     bool
	e         entry
	fence     int64
	tokens    int64
	who       [processes]process
	booked    int   // by the provider
	seen      int64 // the highest fence that the provider saw
	completed bool  // once
	wrong     string
}

// view is what makes two worlds one: fences by their order, tokens by whose they are, times by whether they are over.
type view struct {
	there, stuck   bool
	noted          bool
	at             situation
	own, open      [processes]bool
	phases         [processes]phase
	order          [processes + 1]int
	owners         [processes]bool // whose lease is the entry's
	lease, due     bool
	booked         int
	completed, bad bool
}

var (
	modelNow    = time.Unix(1e9, 0)
	modelPast   = modelNow.Add(-time.Hour)
	modelKey    = idempotency.Key{Operation: "o", Value: "k"}
	modelOthers = idempotency.Fingerprint{Version: 1}
)

func (w *world) view() view {
	v := view{there: w.there, booked: w.booked, completed: w.completed, bad: w.wrong != ""}
	fences := [processes + 2]int64{}
	if w.there {
		v.at, v.stuck, v.lease, v.due = w.e.situation(modelNow), w.e.Stuck, w.e.lease.After(modelNow),
			w.e.due.After(modelNow)
		fences[processes], v.noted = w.e.Fence, len(w.e.Progress.Steps) > 0
	}
	fences[processes+1] = w.seen
	for i, p := range w.who {
		v.phases[i] = p.phase
		if p.phase != idle {
			fences[i] = p.lease.Fence
			v.open[i] = p.open
			v.own[i] = w.there && w.e.token == fmt.Sprint(p.token)
			v.owners[i] = w.there && w.e.token == p.lease.Token && w.e.Fence == p.lease.Fence
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

// memory is the store of a world.
func (v *variant) memory(w *world) *Store {
	m := &Store{
		now: func() time.Time { return modelNow }, table: &v.rules, keys: map[idempotency.Key]*entry{},
		fence: w.fence,
	}
	if w.there {
		e := w.e
		m.keys[modelKey] = &e
	}
	return m
}

// on makes a call on a world's store, and takes over what the store knows then.
func (v *variant) on(w *world, call func(m *Store)) {
	before := free
	if w.there {
		before = w.e.situation(modelNow)
	}
	m := v.memory(w)
	call(m)
	had := w.e.Fence
	e := m.keys[modelKey]
	if w.there = e != nil; w.there {
		w.e = *e
	}
	w.fence = m.fence
	if w.there && w.e.Fence != had && (before == leased || before == recovering) {
		w.wrong = "a living holder was robbed"
	}
	if w.there && (w.e.State == idempotency.Completed || w.e.State == idempotency.FailedReplayable) {
		w.completed = true
	}
}

// next emits what can happen.
func (v *variant) next(w *world, emit func(explore.Step[world])) {
	step := func(fault bool, name string, change func(t *world)) {
		t := *w
		change(&t)
		emit(explore.Step[world]{Name: explore.Named(name), To: t, Fault: fault})
	}
	if w.wrong != "" {
		return
	}
	v.time(w, step)
	for i := range w.who {
		if i == recoverer {
			v.recoverer(w, step)
		} else {
			v.caller(w, i, step)
		}
		if w.who[i].phase != idle {
			step(true, fmt.Sprintf("%s vanishes", name(i)), func(t *world) { t.who[i] = process{} })
		}
		v.worker(w, i, step)
	}
	step(true, "another command's caller claims, and releases what it wins", func(t *world) {
		v.on(t, func(m *Store) {
			got, err := m.Claim(context.Background(), idempotency.Request{Key: modelKey, Fingerprint: modelOthers},
				store.ClaimOptions{Token: "other", Lease: time.Hour, Rerun: true})
			if err == nil && got.Won {
				_ = m.Release(context.Background(), got.Lease)
			}
		})
	})
	step(true, "the sweeper sweeps", func(t *world) {
		v.on(t, func(m *Store) { _, _ = m.Sweep(context.Background(), 10) })
	})
}

func name(i int) string { return []string{"A", "B", "the recoverer"}[i] }

type emitter func(fault bool, name string, change func(t *world))

// time passes: a lease ends, a delay is over, a body is overdue. A tombstone stays, for after it a retry is a new
// request.
func (v *variant) time(w *world, step emitter) {
	if !w.there {
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

// caller emits what a caller does before it has the key.
func (v *variant) caller(w *world, i int, step emitter) {
	p := w.who[i]
	if p.phase != idle && p.phase != unsure {
		return
	}
	for _, answered := range []bool{true, false} {
		text := fmt.Sprintf("%s claims", name(i))
		if p.phase == unsure {
			text += " again, as its reply was lost"
		}
		if !answered {
			text += "; the reply is lost"
		}
		step(!answered, text, func(t *world) {
			q := &t.who[i]
			if q.phase == idle {
				t.tokens++
				q.token = t.tokens
			}
			var got store.ClaimResult
			v.on(t, func(m *Store) {
				got, _ = m.Claim(context.Background(), idempotency.Request{Key: modelKey},
					store.ClaimOptions{Token: fmt.Sprint(q.token), Lease: time.Hour, Rerun: v.rerun})
			})
			switch {
			case !answered:
				q.phase = unsure
			case got.Won:
				q.phase, q.lease, q.open = holds, got.Lease, len(got.Record.Progress.Steps) > 0
			default:
				*q = process{}
			}
		})
	}
}

// recoverer emits how the recoverer gets the key, and asks the provider; and how a person takes one that is stuck.
func (v *variant) recoverer(w *world, step emitter) {
	if w.who[recoverer].phase == holds && !w.who[recoverer].open {
		return // it need not ask
	}
	if w.who[recoverer].phase == holds {
		step(false, "the recoverer asks the provider", func(t *world) {
			p := &t.who[recoverer]
			if v.fenced {
				t.seen = max(t.seen, p.lease.Fence)
			}
			p.phase = denied
			if t.booked > 0 {
				p.phase = booked
			}
		})
		step(true, "the recoverer asks the provider in vain", func(t *world) { t.who[recoverer].phase = unclear })
		return
	}
	if w.who[recoverer].phase != idle {
		return
	}
	take := func(text string, get func(m *Store, token string) (store.ClaimResult, bool)) {
		step(false, text, func(t *world) {
			t.tokens++
			v.on(t, func(m *Store) {
				if got, won := get(m, fmt.Sprint(t.tokens)); won {
					t.who[recoverer] = process{
						phase: holds, token: t.tokens, lease: got.Lease,
						open: len(got.Record.Progress.Steps) > 0,
					}
				}
			})
		})
	}
	take("the recoverer looks for keys", func(m *Store, token string) (store.ClaimResult, bool) {
		got, _ := m.Recover(context.Background(), store.RecoverOptions{Limit: 1, Lease: time.Hour, Token: token})
		if len(got) == 0 {
			return store.ClaimResult{}, false
		}
		return got[0], true
	})
	if w.there && w.e.Stuck {
		take("a person takes the stuck key", func(m *Store, token string) (store.ClaimResult, bool) {
			got, _ := m.Claim(context.Background(), idempotency.Request{Key: modelKey},
				store.ClaimOptions{Token: token, Lease: time.Hour, Rerun: true})
			return got, got.Won
		})
	}
}

// worker emits what whoever has the key does with it.
func (v *variant) worker(w *world, i int, step emitter) {
	p := w.who[i]
	ctx := context.Background()
	write := func(fault bool, text string, then process, call func(m *Store) error) {
		step(fault, name(i)+" "+text, func(t *world) {
			v.on(t, func(m *Store) {
				newer := m.fence > p.lease.Fence && t.there // of a key that is gone nothing is written
				err := call(m)
				if err == nil && newer {
					t.wrong = "a late writer was not refused: " + text
				}
				if err != nil && !errors.Is(err, store.ErrLeaseLost) {
					t.wrong = err.Error()
				}
				if err != nil {
					then = process{}
				}
			})
			t.who[i] = then
		})
	}
	finish := func(m *Store) error {
		err := m.Finish(ctx, p.lease, idempotency.Result{Code: 1}, idempotency.Retention{Tombstone: -1})
		if e := m.keys[modelKey]; err == nil && (e == nil || e.Result.Code != 1) {
			return errors.New("the owner is told yes, and its result is not kept")
		}
		return err
	}
	switch p.phase {
	case holds:
		write(true, "extends its lease", p, func(m *Store) error { return m.Extend(ctx, p.lease, time.Hour) })
		if !p.open {
			write(i != recoverer, "knows that nothing was done, and releases", process{},
				func(m *Store) error { return m.Release(ctx, p.lease) })
		}
		if i != recoverer {
			then := p
			then.phase = noted
			write(false, "notes that it will charge", then, func(m *Store) error {
				return m.Save(ctx, p.lease, store.Progress{
					Steps: []store.Step{{Name: "charge", State: store.StepSent}},
				})
			})
			write(true, "fails before it charged, and does not know of others", process{},
				func(m *Store) error { return m.MarkUnknown(ctx, p.lease, "", 0) })
		}
	case noted:
		v.charges(w, i, step)
		if !p.open {
			write(true, "is told to come again, and releases", process{},
				func(m *Store) error { return m.Release(ctx, p.lease) })
		}
	case booked:
		write(false, "records the result", process{}, finish)
		write(true, "records the result; the reply is lost", p, finish)
	case denied:
		if v.frees {
			write(false, "releases, for nothing was booked", process{},
				func(m *Store) error { return m.Release(ctx, p.lease) })
		} else {
			v.charges(w, i, step)
		}
	case unclear:
		write(false, "leaves it unknown", process{},
			func(m *Store) error { return m.MarkUnknown(ctx, p.lease, "", time.Hour) })
		if i == recoverer {
			write(false, "postpones", process{},
				func(m *Store) error { return m.Postpone(ctx, p.lease, "", time.Hour, false) })
			write(false, "gives it to a person", process{},
				func(m *Store) error { return m.Postpone(ctx, p.lease, "", 0, true) })
		}
	}
}

// charges emits the call of the provider.
func (v *variant) charges(w *world, i int, step emitter) {
	for _, answered := range []bool{true, false} {
		text := name(i) + " charges"
		if !answered {
			text += "; the provider's reply is lost"
		}
		step(!answered, text, func(t *world) {
			p := &t.who[i]
			switch {
			case v.fenced && p.lease.Fence < t.seen:
				*p = process{}
				return
			case v.fenced:
				t.seen = p.lease.Fence
				t.booked++
			default:
				t.booked = 1
			}
			p.phase = booked
			if !answered {
				p.phase = unclear
			}
		})
	}
}

// bad says what is wrong with a world.
func bad(w *world) string {
	switch {
	case w.wrong != "":
		return w.wrong
	case w.booked > 1:
		return "the provider booked twice"
	case w.completed && (!w.there || w.e.State != idempotency.Completed && w.e.State != idempotency.Expired):
		return "a result was lost"
	case w.booked > 0 && !w.there:
		return "the provider booked, and the key is free"
	case w.there && w.e.State == idempotency.Completed && w.booked == 0:
		return "completed without an effect"
	}
	return ""
}

// good is a world in which nothing is left to do: it is done, or nothing happened and the key is free.
func good(w *world) bool {
	return w.who == [processes]process{} && (w.completed || !w.there && w.booked == 0)
}

func (v *variant) explore() explore.Found {
	return explore.Run(explore.Model[world, view]{
		Start: []world{{}}, Next: v.next, Key: (*world).view, Bad: bad,
		Good: good,
	})
}

// TestModel: in every state that two callers, a recoverer and the clock can reach, one owner's effect stands, no ended
// lease frees a key, no result is lost, and from each of them it ends well once nothing fails any more.
func TestModel(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]variant{
		"a fenced provider, the recoverer frees":      {rules: table, fenced: true, frees: true},
		"a fenced provider, the recoverer goes on":    {rules: table, fenced: true},
		"a downstream key, the recoverer goes on":     {rules: table},
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

// TestModel_FreeingWithoutAFenceIsFound: a provider that knows the downstream key but no fence says "nothing happened";
// the recoverer frees the key; and the first owner, who was only slow, charges. This is why a prober may say that it
// did not happen only when it cannot happen any more, and why going on with the work is better than freeing its key.
func TestModel_FreeingWithoutAFenceIsFound(t *testing.T) {
	t.Parallel()
	v := variant{rules: table, frees: true}
	if found := v.explore(); found.Violation == nil || found.Violation.What != "the provider booked, and the key "+
		"is free" {
		t.Fatal(found)
	}
}

// TestModel_FindsSeededBugs: a wrong cell of the table is found.
func TestModel_FindsSeededBugs(t *testing.T) {
	t.Parallel()
	for name, seed := range map[string]func(r *rules){
		"an ended lease is free":                      func(r *rules) { r[claim][lapsed] = grant },
		"an unknown outcome is free":                  func(r *rules) { r[claim][due] = grant },
		"an unknown outcome is run again":             func(r *rules) { r[claim][waiting] = takeOver },
		"a living owner is robbed by a caller":        func(r *rules) { r[claim][leased] = takeOver },
		"a living owner is robbed by the recoverer":   func(r *rules) { r[recover][leased] = assign },
		"a living recoverer is robbed":                func(r *rules) { r[recover][recovering] = assign },
		"a completed key is recovered":                func(r *rules) { r[recover][done] = assign },
		"a late writer is told yes under a recoverer": func(r *rules) { r[foreign][recovering] = repeat },
		"a late writer is told yes under another":     func(r *rules) { r[foreign][leased] = repeat },
		"a late owner frees what another holds":       func(r *rules) { r[foreign][leased] = forget },
		"another command takes a completed key":       func(r *rules) { r[claimOther][done] = grant },
		"another command takes an unknown one":        func(r *rules) { r[claimOther][due] = grant },
		"the sweeper removes an unknown key":          func(r *rules) { r[sweep][due] = forget },
		"the sweeper removes an abandoned key":        func(r *rules) { r[sweep][lapsed] = forget },
		"the sweeper removes a result":                func(r *rules) { r[sweep][stale] = forget },
		"an expired result is run again":              func(r *rules) { r[claim][expired] = grant },
		"recovery leaves an unknown key lying": func(r *rules) {
			r[recover][due] = skip
			r[claimRerun][due] = tell
		},
		"a stuck key cannot be taken by a person":      func(r *rules) { r[claimRerun][stuck] = tell },
		"a doubted key is free":                        func(r *rules) { r[markUnknown][leased] = forget },
		"a result that comes after a note is dropped":  func(r *rules) { r[succeed][due] = repeat },
		"a result that comes under a lease is dropped": func(r *rules) { r[succeed][leased] = repeat },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := variant{rules: table, fenced: true, frees: true}
			seed(&v.rules)
			found := v.explore()
			if found.Violation == nil {
				t.Fatalf("not found: %v", found)
			}
			t.Log(found)
		})
	}
}
