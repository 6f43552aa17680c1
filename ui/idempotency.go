package ui

import (
	"context"
	"net/http"
	"slices"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// inKeys is the side of idempotency keys.
const inKeys = "keys"

// idempotency returns an operator of the idempotency keys in a viewer's name.
func (d *database) idempotency(name string) (*keysoperator.Operator, error) {
	return keysoperator.New(d.Pool, d.Schema, name)
}

// lookAtKeys counts the open operations, if the database has idempotency keys.
func (d *database) lookAtKeys(ctx context.Context) (counts *keysoperator.Counts, may bool, err error) {
	o, err := d.idempotency(viewer)
	if err != nil {
		return nil, false, err
	}
	here, may, err := o.Access(ctx)
	if err == nil && here {
		counts = new(keysoperator.Counts)
		*counts, err = o.Count(ctx)
	}
	if absent(err) {
		return nil, false, nil
	}
	return counts, may, err
}

// unknownOperations reads the operations with an unknown outcome.
func (d *database) unknownOperations(ctx context.Context) ([]keysoperator.Operation, error) {
	return d.operationsOf(ctx, keysoperator.Filter{Limit: page + 1})
}

func (d *database) operationsOf(ctx context.Context, f keysoperator.Filter) ([]keysoperator.Operation, error) {
	o, err := d.idempotency(viewer)
	if err != nil {
		return nil, err
	}
	stuck, err := o.Stuck(ctx, f)
	if err != nil {
		return nil, err
	}
	unknown, err := o.Unknown(ctx, f)
	return append(stuck, unknown...), err
}

func (h *Handler) keyFigures(c keysoperator.Counts) []figure {
	return []figure{
		{
			Name: "Stuck", Value: count(c.Stuck), Unit: unit(c.Stuck, "operation"), Href: h.path("idempotency"),
			Note: "of idempotency keys", Severity: over(c.Stuck, look),
		},
		{
			Name: "Unknown", Value: count(c.Unknown), Unit: unit(c.Unknown, "operation"), Href: h.path("idempotency"),
			Note: "recovery has them",
		},
	}
}

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
func (q *request) operationsIn(d *database, p operationsPage) operationsList {
	list := operationsList{DB: d.Name}
	ctx, cancel := q.bounded()
	defer cancel()
	if p.Key != "" {
		o, err := d.idempotency(viewer)
		var found keysoperator.Found
		if err == nil {
			found, err = o.Find(ctx, p.Key)
		}
		if err != nil {
			list.Away = away(err)
		}
		list.Found, list.Unsearched = d.withCommands(found.Operations), found.Unsearched
		return list
	}
	var found listed[keysoperator.Operation]
	if p.Operation == "" {
		found, _ = d.operations.get(q.Context(), q.h.cfg.Timeout)
	} else {
		found.List, found.Err = d.operationsOf(ctx, keysoperator.Filter{Operation: p.Operation, Limit: page + 1})
	}
	if found.Err != nil {
		list.Away = away(found.Err)
		return list
	}
	all := d.withCommands(found.List)
	n := slices.IndexFunc(all, func(o operation) bool { return !o.Stuck })
	if n < 0 {
		n = len(all)
	}
	list.Stuck, list.MoreStuck = firstPage(all[:n])
	list.Unknown, list.MoreUnknown = firstPage(all[n:])
	for _, o := range list.Stuck {
		of := verbs.OfOperation{Operation: o.Operation.Operation}
		name := nameOf{of.Operation, commandOf(d, verbs.RetryOperation{OfOperation: of, All: true})}
		if !slices.Contains(list.Names, name) {
			list.Names = append(list.Names, name)
		}
	}
	return list
}

// firstPage cuts a list that was read with one extra row.
func firstPage[T any](list []T) (first []T, more bool) {
	return list[:min(len(list), page)], len(list) > page
}

func (d *database) withCommands(list []keysoperator.Operation) (all []operation) {
	for _, o := range list {
		of := verbs.OfOperation{Tenant: o.Tenant, Operation: o.Operation, Key: o.Key}
		all = append(all, operation{
			o, commandOf(d, verbs.RetryOperation{OfOperation: of}),
			commandOf(d, verbs.CompleteOperation{
				OfOperation: of, Code: 201, Body: "answer.json", ContentType: "application/json",
			}),
			commandOf(d, verbs.FreeOperation{OfOperation: of, Sure: true}),
		})
	}
	return all
}
