package ui

import (
	"net/http"
	"slices"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

type operationsPage struct {
	Operation, Key string // the filter
	Lists          []operationsList
}

// operationsList is the list of one database.
type operationsList struct {
	DB             string
	Away           string
	Counts         keysoperator.Counts
	Stuck, Unknown []operation
	MoreStuck      bool
	MoreUnknown    bool
	Found          []operation // those of the key in the filter
	Unsearched     []string
	Names          []nameOf // the names of stuck operations
	ReadOnly       bool
}

// operation is an operation with its commands.
type operation struct {
	keysoperator.Operation
	Retry, Complete, Free string
}

// nameOf is an operation's name, with the command that retries all stuck ones.
type nameOf struct{ Name, RetryAll string }

func idempotencyKeys(q *request) error {
	p := operationsPage{Operation: q.URL.Query().Get("operation"), Key: q.URL.Query().Get("key")}
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		switch {
		case why != "":
			p.Lists = append(p.Lists, operationsList{DB: d.Name, Away: why})
		case st.Keys != nil:
			one := q.operationsIn(d, p)
			one.Counts, one.ReadOnly = *st.Keys, !st.MayKeys
			p.Lists = append(p.Lists, one)
		}
	}
	return q.render("idempotency", http.StatusOK, view{
		Title: "Idempotency keys", Nav: "idempotency", Live: p.Key == "", Body: p,
	})
}

// operationsIn lists the operations of a key, those of a name, or the shared list of all.
func (q *request) operationsIn(d *reads.Database, p operationsPage) operationsList {
	list := operationsList{DB: d.Name}
	ctx, cancel := q.bounded()
	defer cancel()
	if p.Key != "" {
		o, err := d.Idempotency(reads.Viewer)
		var found keysoperator.Found
		if err == nil {
			found, err = o.Find(ctx, p.Key)
		}
		if err != nil {
			list.Away = reads.Away(err)
		}
		list.Found, list.Unsearched = withCommands(d, found.Operations), found.Unsearched
		return list
	}
	var found []keysoperator.Operation
	var err error
	if p.Operation == "" {
		found, _, err = d.Operations.Get(q.Context(), q.h.cfg.Timeout)
	} else {
		found, err = d.OperationsOf(ctx, keysoperator.Filter{Operation: p.Operation, Limit: reads.Page + 1})
	}
	if err != nil {
		list.Away = reads.Away(err)
		return list
	}
	all := withCommands(d, found)
	n := slices.IndexFunc(all, func(o operation) bool { return !o.Stuck })
	if n < 0 {
		n = len(all)
	}
	list.Stuck, list.MoreStuck = firstPage(all[:n])
	list.Unknown, list.MoreUnknown = firstPage(all[n:])
	for _, o := range list.Stuck {
		of := verbs.OfOperation{Operation: o.Operation.Operation}
		name := nameOf{of.Operation, reads.CommandOf(d, verbs.RetryOperation{OfOperation: of, All: true})}
		if !slices.Contains(list.Names, name) {
			list.Names = append(list.Names, name)
		}
	}
	return list
}

func withCommands(d *reads.Database, list []keysoperator.Operation) (all []operation) {
	for _, o := range list {
		of := verbs.OfOperation{Tenant: o.Tenant, Operation: o.Operation, Key: o.Key}
		all = append(all, operation{
			o, reads.CommandOf(d, verbs.RetryOperation{OfOperation: of}),
			reads.CommandOf(d, verbs.CompleteOperation{
				OfOperation: of, Code: 201, Body: "answer.json", ContentType: "application/json",
			}),
			reads.CommandOf(d, verbs.FreeOperation{OfOperation: of, Sure: true}),
		})
	}
	return all
}
