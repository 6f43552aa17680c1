// Package fakeprovider is a provider of payments for tests: it keeps its own ledger, by which a test counts what really
// happened, and fails on demand.
package fakeprovider

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Fault is what happens to one call.
type Fault int

const (
	// None: it is answered.
	None Fault = iota
	// Refuse: a final no.
	Refuse
	// Unavailable: a definite no for now, before anything was done.
	Unavailable
	// LostRequest: a time-out, and the request never arrived.
	LostRequest
	// LostAnswer: a time-out, after it was done.
	LostAnswer
)

// What a call fails with.
var (
	ErrRefused     = errors.New("card declined")
	ErrUnavailable = errors.New("503 try later")
	ErrTimeout     = errors.New("time-out: no answer")
)

// Provider is one provider. The zero value works, and knows keys.
type Provider struct {
	// Forgetful: it takes two calls with one key for two. It can still be asked what it knows of a key.
	Forgetful bool
	// At is called at the begin of each call ("sent") and behind its effect ("answered"): a test may crash there.
	At func(when string)

	mu      sync.Mutex
	faults  []Fault
	effects []Effect
	calls   int
}

// Effect is a line of the ledger.
type Effect struct {
	ID, Key, What string
	UndoneBy      string // the key of the call that took it back
}

// Next sets what happens to the next calls, one each.
func (p *Provider) Next(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, faults...)
}

// Do makes an effect, once for a key, and returns its id.
func (p *Provider) Do(_ context.Context, key, what string) (string, error) {
	return p.call(func() (Effect, bool) {
		for _, e := range p.effects {
			if e.Key == key && !p.Forgetful {
				return e, true
			}
		}
		return Effect{}, false
	}, func() string {
		id := fmt.Sprintf("%s-%d", what, len(p.effects)+1)
		p.effects = append(p.effects, Effect{ID: id, Key: key, What: what})
		return id
	})
}

// Undo takes an effect back, once for a key. A second key for the same effect is an error that no test expects.
func (p *Provider) Undo(_ context.Context, key, id string) error {
	var twice error
	_, err := p.call(func() (Effect, bool) { return Effect{}, false }, func() string {
		for i, e := range p.effects {
			switch {
			case e.ID != id:
			case e.UndoneBy == "":
				p.effects[i].UndoneBy = key
			case e.UndoneBy != key:
				twice = fmt.Errorf("%s is taken back a second time", id)
			}
		}
		return ""
	})
	return errors.Join(err, twice)
}

// call is one call, with the fault whose turn it is. What is known of its key is not refused any more.
func (p *Provider) call(known func() (Effect, bool), effect func() string) (string, error) {
	p.at("sent")
	p.mu.Lock()
	p.calls++
	fault := None
	if len(p.faults) > 0 {
		fault, p.faults = p.faults[0], p.faults[1:]
	}
	before, ok := known()
	if ok && fault == Refuse {
		fault = None
	}
	id := before.ID
	if !ok && (fault == None || fault == LostAnswer) {
		id = effect()
	}
	p.mu.Unlock()
	p.at("answered")
	return id, map[Fault]error{
		Refuse: ErrRefused, Unavailable: ErrUnavailable, LostRequest: ErrTimeout,
		LostAnswer: ErrTimeout,
	}[fault]
}

func (p *Provider) at(when string) {
	if p.At != nil {
		p.At(when)
	}
}

// Ask returns the effect of a key.
func (p *Provider) Ask(key string) (Effect, bool) {
	for _, e := range p.Effects() {
		if e.Key == key {
			return e, true
		}
	}
	return Effect{}, false
}

// Effects is the ledger.
func (p *Provider) Effects() []Effect {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Effect(nil), p.effects...)
}

// Calls is how often it was called.
func (p *Provider) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}
