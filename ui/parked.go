package ui

import (
	"context"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// editing is the change of a parked event, which stays parked.
func (q *request) editing(id int64, edit admin.Edit, flags []string, done string) verb {
	name, where := q.PathValue("id"), q.PathValue("side")
	return verb{
		name:    "Edit event " + name,
		command: reads.ParkedArgs(where, "edit", append([]string{"--id=" + name}, flags...)...),
		back:    q.h.path("db", q.db.Name, where, "events", name),
		do: func(ctx context.Context, reason string) (string, error) {
			s, err := q.side(where, "", q.who.Name)
			if err == nil {
				err = s.EditParked(ctx, id, edit, reason)
			}
			return done + " The event stays parked until it is released.", err
		},
	}
}

type parkedVerb = verbs.Of[admin.ParkedOperator]

// changeParked makes a change of parked events, of those in the viewer's Scope.
func (q *request) changeParked(v parkedVerb, consumer string) error {
	where := q.PathValue("side")
	return q.change(verb{
		name: v.Verb().Title, command: reads.ArgsOf(v, ofConsumer(where, consumer)...), back: q.h.path("keys"),
		do: func(ctx context.Context, reason string) (string, error) {
			s, err := q.side(where, consumer, q.who.Name)
			if err != nil {
				return "", err
			}
			done, err := v.Verb().Do(ctx, s, reason)
			return done.Text, err
		},
	})
}

// ofConsumer returns the flags that name the consumer of an inbox.
func ofConsumer(where, consumer string) []string {
	if where != reads.InInbox || consumer == "" {
		return nil
	}
	return []string{"--consumer=" + consumer}
}
