package inbox

import (
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outcome"
)

// maxRejections limits the number of types with rejected effects. A rejection of a further type counts like any
// failure.
const maxRejections = 1000

// rejections tells a deployment without its migration or grant from an event that asks for a missing object. If the
// database rejects a statement (class 42) for one key, the event may be the cause. If it does so for several keys and
// applies no effect of their type in between, no event is.
type rejections struct {
	mu sync.Mutex
	of map[string]rejection // by type
}

type rejection struct {
	key     listName
	several bool
}

type listName struct {
	tenant, topic, key string
	id                 uuid.UUID // of an event without a key
}

// listOf returns the list that the event would be in.
func listOf(e *event.Event) listName {
	name := listName{tenant: e.Tenant, topic: e.Topic, key: e.Key}
	if e.Key == "" {
		name.id = e.ID
	}
	return name
}

// note records that the effect of e was rejected. It reports whether effects of several keys were.
func (r *rejections) note(e *event.Event) bool {
	k := listOf(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	known, found := r.of[e.Type]
	switch {
	case !found && len(r.of) >= maxRejections:
		return false
	case !found:
		known.key = k
	case known.key != k:
		known.several = true
	}
	if r.of == nil {
		r.of = map[string]rejection{}
	}
	r.of[e.Type] = known
	return known.several
}

// applied removes the types of which an effect was committed.
func (r *rejections) applied(events []event.Event, out []Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := 0; i < len(out) && len(r.of) > 0; i++ {
		if out[i] == Applied {
			delete(r.of, events[i].Type)
		}
	}
}

// undeployed reports whether the effect was rejected like those of other keys. f then waits for an operator, unless
// there are events before the rejected one: they run first, and f is unchanged.
func (b *batch) undeployed(f *failure) bool {
	index := f.index
	if b.limit == b.pos+1 {
		index = b.pos
	}
	of, _ := outcome.Of(f.err)
	if !f.rejects || of == outcome.ClassTerminal || index < b.pos || !b.in.rejections.note(&b.events[index]) {
		return false
	}
	if !b.upTo(index) {
		f.kind, f.err = rejected, fmt.Errorf("the effect fails for several keys, so no event is to blame: %w", f.err)
	}
	return true
}
