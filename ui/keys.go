package ui

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/ui/verbs"
)

// filter is the filter of the list.
type filter struct {
	Topic, Key, Code, Kind, Consumer string
	OlderThan                        time.Duration
	After                            int64
}

func (q *request) filter() (f filter, err error) {
	form := q.URL.Query()
	f = filter{
		Topic: form.Get("topic"), Key: form.Get("key"), Code: form.Get("code"), Kind: form.Get("kind"),
		Consumer: form.Get("consumer"),
	}
	if text := form.Get("older"); text != "" {
		if f.OlderThan, err = time.ParseDuration(text); err != nil || f.OlderThan < 0 {
			return f, &refusal{http.StatusBadRequest, "This filter cannot be read", "Write an age as 10m or 2h."}
		}
	}
	if text := form.Get("after"); text != "" {
		if f.After, err = strconv.ParseInt(text, 10, 64); err != nil {
			return f, notFound("A page begins after an event's id.")
		}
	}
	return f, nil
}

// Older returns the age for the form.
func (f filter) Older() string {
	if f.OlderThan == 0 {
		return ""
	}
	return f.OlderThan.String()
}

// keysList is the list of one outbox or inbox.
type keysList struct {
	DB, Side string
	Away     string
	Keys     []blockedKey
	More     bool
	ReadOnly bool
}

// blockedKey is a blocked key with its commands.
type blockedKey struct {
	admin.BlockedKey
	Release, Discard string
}

type keysPage struct {
	Filter filter
	Lists  []keysList
	Any    bool
}

func blockedKeys(q *request) error {
	f, err := q.filter()
	if err != nil {
		return err
	}
	p := keysPage{Filter: f}
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		if why != "" {
			p.Lists = append(p.Lists, keysList{DB: d.Name, Away: why})
			continue
		}
		for _, where := range sides {
			if !st.has(where) {
				continue
			}
			one := q.keysOf(d, where, f)
			one.ReadOnly = !st.MayChange
			p.Any = p.Any || len(one.Keys) > 0
			p.Lists = append(p.Lists, one)
		}
	}
	return q.render("keys", http.StatusOK, view{Title: "Blocked keys", Nav: "keys", Live: true, Body: p})
}

// keysOf lists the blocked keys of a filter, or the shared list of all.
func (q *request) keysOf(d *database, where string, f filter) keysList {
	list := keysList{DB: d.Name, Side: where}
	var found listed[admin.BlockedKey]
	if f == (filter{}) && q.who.Scope == nil {
		found, _ = d.keys[where].get(q.Context(), q.h.cfg.Timeout)
	} else {
		ctx, cancel := q.bounded()
		defer cancel()
		s, err := d.side(where, f.Consumer, viewer)
		if err == nil {
			found.List, err = q.who.Scope.of(s).BlockedKeys(ctx, admin.BlockedFilter{
				Topic: f.Topic, Key: f.Key, Code: f.Code, OlderThan: f.OlderThan, Limit: page + 1,
			})
		}
		found.Err = err
	}
	if found.Err != nil {
		list.Away = away(found.Err)
		return list
	}
	if list.More = len(found.List) > page; list.More {
		found.List = found.List[:page]
	}
	for _, k := range found.List {
		of := verbs.ParkedKey{Tenant: k.Tenant, Topic: k.Topic, Key: k.Key, Where: verbs.Side(where)}
		names := ofConsumer(where, k.Consumer)
		list.Keys = append(list.Keys, blockedKey{
			k, commandOf(d, verbs.ReleaseParked{ParkedKey: of}, names...),
			commandOf(d, verbs.DiscardParked{ParkedKey: of}, names...),
		})
	}
	return list
}

func releaseKey(q *request) error {
	return q.changeKey(func(k verbs.ParkedKey) parkedVerb { return verbs.ReleaseParked{ParkedKey: k} })
}

func discardKey(q *request) error {
	return q.changeKey(func(k verbs.ParkedKey) parkedVerb { return verbs.DiscardParked{ParkedKey: k} })
}

type parkedVerb = verbs.Of[admin.ParkedOperator]

func (q *request) changeKey(of func(verbs.ParkedKey) parkedVerb) error {
	k := verbs.ParkedKey{Topic: q.PostForm.Get("topic"), Where: verbs.Side(q.PathValue("side"))}
	var err, keyErr error
	k.Tenant, err = unb64(q.PostForm.Get("tenant"))
	k.Key, keyErr = unb64(q.PostForm.Get("key"))
	if err != nil || keyErr != nil {
		return errForm
	}
	return q.changeParked(of(k), q.PostForm.Get("consumer"))
}

// changeParked makes a change of parked events, of those in the viewer's Scope.
func (q *request) changeParked(v parkedVerb, consumer string) error {
	where := q.PathValue("side")
	return q.change(verb{
		name: v.Verb().Title, command: argsOf(v, ofConsumer(where, consumer)...), back: q.h.path("keys"),
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
	if where != inInbox || consumer == "" {
		return nil
	}
	return []string{"--consumer", consumer}
}
