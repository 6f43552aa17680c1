package ui

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/admin"
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
		flags := keyFlags(where, k.Consumer, k.Tenant, k.Topic, k.Key)
		list.Keys = append(list.Keys, blockedKey{
			k, d.withReason(parked(where, "release", flags...)...), d.withReason(parked(where, "discard", flags...)...),
		})
	}
	return list
}

// keyFlags returns the flags that name a key.
func keyFlags(where, consumer, tenant, topic, key string) (flags []string) {
	if where == inInbox {
		flags = append(flags, "--consumer", consumer)
	}
	if tenant != "" {
		flags = append(flags, "--tenant", tenant)
	}
	return append(flags, "--topic", topic, "--key", key)
}

// keyOf is the key of a form.
type keyOf struct{ consumer, tenant, topic, key string }

func (q *request) keyOf() (k keyOf, err error) {
	k.consumer, k.topic = q.PostForm.Get("consumer"), q.PostForm.Get("topic")
	if k.tenant, err = unb64(q.PostForm.Get("tenant")); err == nil {
		k.key, err = unb64(q.PostForm.Get("key"))
	}
	return k, err
}

func releaseKey(q *request) error {
	return q.changeKey("release", func(ctx context.Context, s side, k keyOf, reason string) (string, error) {
		n, err := s.ReleaseKey(ctx, k.tenant, k.topic, k.key, reason)
		return fmt.Sprintf("Key %s of topic %s is released: %s %s of its list, in order.", shown(k.key), k.topic,
			releases[q.PathValue("side")], plural(n, "event")), err
	})
}

func discardKey(q *request) error {
	return q.changeKey("discard", func(ctx context.Context, s side, k keyOf, reason string) (string, error) {
		gone, err := s.DiscardKey(ctx, k.tenant, k.topic, k.key, reason)
		return plural(gone.Events, "event") + " given up for good." + mayAppear(gone), err
	})
}

// releases says what happens after a release, by side.
var releases = map[string]string{
	inOutbox: "the relay that owns its lane publishes", inInbox: "a worker that has the effect applies",
}

func mayAppear(d admin.DiscardResult) string {
	if d.MayAppear == 0 {
		return ""
	}
	return fmt.Sprintf(" An attempt to send %d of them may have reached Kafka: each may still appear once, late and "+
		"out of its order.", d.MayAppear)
}

// titles are the pages' titles, by verb.
var titles = map[string]string{
	"release": "Release", "discard": "Discard", "edit": "Edit", "pause": "Pause", "resume": "Resume",
	"retry": "Retry", "complete": "Complete", "free": "Free",
}

func (q *request) changeKey(name string,
	do func(ctx context.Context, s side, k keyOf, reason string) (string, error),
) error {
	k, err := q.keyOf()
	if err != nil {
		return err
	}
	where := q.PathValue("side")
	return q.change(verb{
		name:    titles[name] + " key " + shown(k.key),
		command: parked(where, name, keyFlags(where, k.consumer, k.tenant, k.topic, k.key)...),
		back:    q.h.path("keys"),
		do: func(ctx context.Context, reason string) (string, error) {
			s, err := q.side(where, k.consumer, q.who.Name)
			if err != nil {
				return "", err
			}
			return do(ctx, s, k, reason)
		},
	})
}
