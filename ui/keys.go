package ui

import (
	"net/http"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

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
		for _, where := range reads.Sides {
			if !st.Has(where) {
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
func (q *request) keysOf(d *reads.Database, where string, f filter) keysList {
	list := keysList{DB: d.Name, Side: where}
	var found []admin.BlockedKey
	var err error
	if f == (filter{}) && q.who.Scope == nil {
		found, _, err = d.Keys[where].Get(q.Context(), q.h.cfg.Timeout)
	} else {
		ctx, cancel := q.bounded()
		defer cancel()
		var s reads.Side
		if s, err = d.Side(where, f.Consumer, reads.Viewer); err == nil {
			found, err = q.who.Scope.of(s).BlockedKeys(ctx, admin.BlockedFilter{
				Topic: f.Topic, Key: f.Key, Code: f.Code, OlderThan: f.OlderThan, Limit: reads.Page + 1,
			})
		}
	}
	if err != nil {
		list.Away = reads.Away(err)
		return list
	}
	found, list.More = firstPage(found)
	for _, k := range found {
		of := verbs.ParkedKey{
			Tenant: k.Tenant, Topic: k.Topic, Key: k.Key, Head: k.HeadID, Most: k.Waiting, Where: verbs.Side(where),
		}
		names := ofConsumer(where, k.Consumer)
		list.Keys = append(list.Keys, blockedKey{
			k, reads.CommandOf(d, released(of), names...),
			reads.CommandOf(d, verbs.DiscardParked{ParkedKey: of}, names...),
		})
	}
	return list
}

func releaseKey(q *request) error {
	return q.changeKey(func(k verbs.ParkedKey) parkedVerb { return released(k) })
}

// released releases a key with the events that came behind those that were seen: giving up is what these must not be.
func released(k verbs.ParkedKey) verbs.ReleaseParked {
	k.Most = 0
	return verbs.ReleaseParked{ParkedKey: k}
}

func discardKey(q *request) error {
	return q.changeKey(func(k verbs.ParkedKey) parkedVerb { return verbs.DiscardParked{ParkedKey: k} })
}

func (q *request) changeKey(of func(verbs.ParkedKey) parkedVerb) error {
	k := verbs.ParkedKey{Where: verbs.Side(q.PathValue("side"))}
	err := verbs.Read(&k, q.PostForm)
	var tenantErr, keyErr error
	k.Tenant, tenantErr = format.UnB64(k.Tenant)
	k.Key, keyErr = format.UnB64(k.Key)
	if err != nil || tenantErr != nil || keyErr != nil {
		return errForm
	}
	return q.changeParked(of(k), q.PostForm.Get("consumer"))
}
