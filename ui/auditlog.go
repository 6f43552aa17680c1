package ui

import (
	"net/http"
	"slices"

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
	var p auditPage
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		if why != "" {
			p.Away = append(p.Away, ailing{d.Name, why})
			continue
		}
		for _, where := range audited {
			if !st.Has(where) {
				continue
			}
			found, _, err := d.Audits[where].Get(q.Context(), q.h.cfg.Timeout)
			if err != nil {
				p.Away = append(p.Away, ailing{d.Name, reads.Away(err)})
			}
			for _, e := range found {
				if !q.who.Scope.sees(e.Tenant, e.Topic) {
					continue
				}
				p.Entries = append(p.Entries, entry{e, d.Name, where})
			}
		}
	}
	slices.SortStableFunc(p.Entries, func(a, b entry) int { return b.At.Compare(a.At) })
	p.Entries = p.Entries[:min(len(p.Entries), 2*reads.Page)]
	return q.render("audit", http.StatusOK, view{Title: "Audit", Nav: "audit", Live: true, Body: p})
}
