// Package fakeprovider is a payment provider for tests. It keeps a ledger of its effects, and fails on demand.
package fakeprovider

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Fault is the fault of a call.
type Fault int

const (
	// None: the call succeeds.
	None Fault = iota
	// Refuse: a final refusal.
	Refuse
	// Unavailable: an error without an effect; a retry may succeed.
	Unavailable
	// LostRequest: a time-out without an effect.
	LostRequest
	// LostAnswer: a time-out after the effect.
	LostAnswer
)

// Errors of calls.
var (
	ErrRefused     = errors.New("card declined")
	ErrUnavailable = errors.New("503 try again later")
	ErrTimeout     = errors.New("time-out: no answer")
)

// Provider is a payment provider. The zero value is ready to use and deduplicates by key: a second call with a key
// finds the effect of the first one, or its refusal.
type Provider struct {
	// Forgetful providers do not deduplicate by key. Ask still finds an effect by its key.
	Forgetful bool
	// At is called at the start of each call ("sent") and after its effect ("answered"): a test may crash there.
	At func(when string)

	mu      sync.Mutex
	faults  []Fault
	effects []Effect
	refused map[string]bool // by key
	calls   int
}

// Effect is an entry of the ledger.
type Effect struct {
	ID, Key, What string
	UndoneBy      string // the key of the call that undid it
}

// Next sets the faults of the next calls.
func (p *Provider) Next(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, faults...)
}

// Do makes an effect, one per key, and returns its id.
func (p *Provider) Do(_ context.Context, key, what string) (string, error) {
	return p.call(key, func() (Effect, bool) {
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

// Undo undoes an effect. It fails if another key has undone the effect before.
func (p *Provider) Undo(_ context.Context, key, id string) error {
	var twice error
	_, err := p.call(key, func() (Effect, bool) { return Effect{}, false }, func() string {
		for i, e := range p.effects {
			switch {
			case e.ID != id:
			case e.UndoneBy == "":
				p.effects[i].UndoneBy = key
			case e.UndoneBy != key:
				twice = fmt.Errorf("%s is undone a second time", id)
			}
		}
		return ""
	})
	return errors.Join(err, twice)
}

// call makes a call with the next fault. It does not refuse a key that has an effect.
func (p *Provider) call(key string, known func() (Effect, bool), effect func() string) (string, error) {
	p.at("sent")
	p.mu.Lock()
	p.calls++
	fault := None
	if len(p.faults) > 0 {
		fault, p.faults = p.faults[0], p.faults[1:]
	}
	before, ok := known()
	switch {
	case ok && fault == Refuse:
		fault = None
	case p.refused[key] && fault == None:
		fault = Refuse
	case fault == Refuse && !p.Forgetful:
		if p.refused == nil {
			p.refused = map[string]bool{}
		}
		p.refused[key] = true
	}
	id := before.ID
	if !ok && !p.refused[key] && (fault == None || fault == LostAnswer) {
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

// Ask looks up the effect of a key.
func (p *Provider) Ask(key string) (Effect, bool) {
	for _, e := range p.Effects() {
		if e.Key == key {
			return e, true
		}
	}
	return Effect{}, false
}

// Effects returns the ledger.
func (p *Provider) Effects() []Effect {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Effect(nil), p.effects...)
}

// Calls returns the number of calls.
func (p *Provider) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}
