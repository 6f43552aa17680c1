package verbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/admin"
)

// Side is where events are parked.
type Side string

// The sides.
const (
	Outbox Side = "outbox"
	Inbox  Side = "inbox"
)

// Releases says what happens after a release, as the beginning of a clause.
func (s Side) Releases() string {
	if s == Inbox {
		return "a worker that has the effect applies"
	}
	return "the owner of its lane publishes"
}

// Again says where to see whether a release was in vain, as a sentence after another one.
func (s Side) Again() string {
	return " What fails again is parked again: relay " + s.Command("list") + " shows it."
}

// Command returns the command of a verb for parked events.
func (s Side) Command(verb string) string {
	if s == Inbox {
		return "inbox parked " + verb
	}
	return "parked " + verb
}

// ParkedKey names a parked key, or one event. A missing tenant means the empty one.
type ParkedKey struct {
	Tenant string `line:"" help:"Tenant of the key."`
	Topic  string `line:"" help:"Topic of the key."`
	Key    string `line:"" help:"The key."`
	Head   int64  `line:"" default:"0" shown:"(any)" help:"Refuse the key unless this is the id of its first event, as keys shows it: what was seen."`
	Most   int64  `line:"" default:"0" shown:"(any)" help:"Refuse the key if it has more events than these: what was seen."`

	Where Side `kong:"-"`
}

// ErrUnnamed: a verb for parked events names neither a key nor an event, or both.
var ErrUnnamed = errors.New("name what is meant: a key by --topic and --key (and --tenant, if it has one), or an " +
	"event by --id")

// Seen returns the list that the operator saw.
func (k ParkedKey) Seen() admin.Seen { return admin.Seen{Head: k.Head, Most: k.Most} }

func (k ParkedKey) check(id int64) error {
	if k.Head < 0 || k.Most < 0 {
		return errors.New("--head and --most want numbers above zero")
	}
	if id > 0 && k != (ParkedKey{Where: k.Where}) || id <= 0 && (k.Topic == "" || k.Key == "") {
		return ErrUnnamed
	}
	return nil
}

func (k ParkedKey) title(verb string, id int64) string {
	if id > 0 {
		return fmt.Sprintf("%s event %d", verb, id)
	}
	return verb + " key " + Shown(k.Key)
}

// ReleaseParked lets a key's events go, or one that is parked alone.
type ReleaseParked struct {
	ParkedKey
	ID int64 `line:"" name:"id" help:"One event that is parked alone: keyless, parked without its key, or quarantined."`
}

// Verb implements Of.
func (v ReleaseParked) Verb() Verb[admin.ParkedOperator] {
	return Verb[admin.ParkedOperator]{
		Command: v.Where.Command("release"),
		Title:   v.title("Release", v.ID),
		Refusal: v.check(v.ID),
		Do: func(ctx context.Context, o admin.ParkedOperator, reason string) (Done, error) {
			if v.ID > 0 {
				return Done{
					fmt.Sprintf("Event %d is released: %s it.%s", v.ID, v.Where.Releases(), v.Where.Again()),
					map[string]any{"events": 1},
				}, o.ReleaseEvent(ctx, v.ID, reason)
			}
			n, err := o.ReleaseKey(ctx, v.Tenant, v.Topic, v.Key, v.Seen(), reason)
			return Done{
				fmt.Sprintf("Key %s of topic %s is released: %s %s of its list, in order.%s", Shown(v.Key), v.Topic,
					v.Where.Releases(), Plural(n, "event"), v.Where.Again()),
				map[string]any{"keys": 1, "events": n},
			}, err
		},
	}
}

// DiscardParked gives a key's parked events up for good, or one.
type DiscardParked struct {
	ParkedKey
	ID int64 `line:"" name:"id" help:"One event."`
}

// Verb implements Of.
func (v DiscardParked) Verb() Verb[admin.ParkedOperator] {
	return Verb[admin.ParkedOperator]{
		Command: v.Where.Command("discard"),
		Title:   v.title("Discard", v.ID),
		Refusal: v.check(v.ID),
		Do: func(ctx context.Context, o admin.ParkedOperator, reason string) (done Done, err error) {
			var d admin.DiscardResult
			if v.ID > 0 {
				d, err = o.DiscardEvent(ctx, v.ID, reason)
			} else {
				d, err = o.DiscardKey(ctx, v.Tenant, v.Topic, v.Key, v.Seen(), reason)
			}
			return gone(d), err
		},
	}
}
