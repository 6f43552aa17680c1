package ui

import (
	"net/http"
	"slices"
	"sync"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// audited lists the sides that keep an audit.
var audited = []string{reads.InOutbox, reads.InInbox, reads.InKeys}

// entry is a row of an audit, with its database and side.
type entry struct {
	admin.AuditEntry
	DB, Side string
}

type auditPage struct {
	Entries []entry
	Away    []ailing
}

// ailing is a database and what is wrong with it.
type ailing struct{ Name, Text string }

func auditLog(q *request) error {
	q.left()
	found := make([]auditPage, len(q.h.databases))
	var all sync.WaitGroup
	for i, d := range q.h.databases { // within one time for all
		all.Go(func() { found[i] = q.auditOf(d) })
	}
	all.Wait()
	var p auditPage
	for _, one := range found {
		p.Entries, p.Away = append(p.Entries, one.Entries...), append(p.Away, one.Away...)
	}
	slices.SortStableFunc(p.Entries, func(a, b entry) int { return b.At.Compare(a.At) })
	p.Entries = p.Entries[:min(len(p.Entries), 2*reads.Page)]
	return q.render("audit", http.StatusOK, view{Title: "Audit", Nav: "audit", Live: true, Body: p})
}

func (q *request) auditOf(d *reads.Database) (p auditPage) {
	st, _, why := q.stateOf(d)
	if why != "" {
		return auditPage{Away: []ailing{{d.Name, why}}}
	}
	sides := slices.DeleteFunc(slices.Clone(audited), func(where string) bool { return !st.Has(where) })
	for _, where := range sides { // all begin before the first is waited for
		_, _, _ = d.Audits[where].Get(q.Context(), 0)
	}
	for _, where := range sides {
		found, _, err := d.Audits[where].Get(q.Context(), q.left())
		if err != nil {
			p.Away = append(p.Away, ailing{d.Name + ", " + where, reads.Away(err)})
		}
		for _, e := range found {
			if q.who.Scope.sees(e.Tenant, e.Topic) {
				p.Entries = append(p.Entries, entry{e, d.Name, where})
			}
		}
	}
	return p
}
