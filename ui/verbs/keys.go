package verbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore/operator"
)

// OfOperation names an idempotent operation.
type OfOperation struct {
	Tenant    string `line:"" shown:"(none)" help:"Tenant of the operation."`
	Operation string `line:"" shown:"(required)" help:"Its name, as relay keys stuck lists it."`
	Key       string `line:"" shown:"(required)" help:"Its key."`
}

func (v OfOperation) key() idempotency.Key {
	return idempotency.Key{Tenant: v.Tenant, Operation: v.Operation, Value: v.Key}
}

func (v OfOperation) titled(verb string) string {
	return verb + " " + v.Operation + " of key " + Shown(v.Key)
}

func (v OfOperation) values() any {
	return map[string]any{"tenant": v.Tenant, "operation": v.Operation, "key": v.Key}
}

// RetryOperation lets recovery try again now.
type RetryOperation struct {
	OfOperation
	All bool `line:"" help:"All that are stuck of this name, after an outage of their provider, in place of --key."`
}

// Verb implements Of.
func (v RetryOperation) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "keys retry",
		Title:   v.title(),
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			if !v.All {
				return Done{
					"Recovery tries once more, as soon as a process of the service runs it.", v.values(),
				}, o.Retry(ctx, v.key(), reason)
			}
			n, err := o.RetryAll(ctx, v.Operation, reason)
			return Done{
				"Recovery tries " + Plural(n, "operation") + " once more.", map[string]any{"operations": n},
			}, err
		},
	}
}

func (v RetryOperation) title() string {
	if v.All {
		return "Retry all of " + Shown(v.Operation)
	}
	return v.titled("Retry")
}

func (v RetryOperation) check() error {
	switch {
	case !v.All:
		return v.key().Check()
	case v.Key != "" || v.Tenant != "" || v.Operation == "":
		return errors.New("--all wants --operation, and neither --key nor --tenant")
	}
	return nil
}

// CompleteOperation declares that an operation has happened, or was refused for good.
type CompleteOperation struct {
	OfOperation
	Code        int    `line:"" shown:"(required)" default:"0" help:"The status that its callers are told: 201."`
	Resource    string `line:"" shown:"(none)" help:"What it made: an id, as the service keeps it."`
	Body        string `line:"" shown:"(none)" help:"File with the answer's body." placeholder:"FILE"`
	ContentType string `line:"" default:"application/json" help:"Of the body."`
	Failure     string `line:"" shown:"(it succeeded)" help:"The stable code of a final refusal: card_declined."`

	Answer []byte `kong:"-"` // the content of the file
}

func (v CompleteOperation) result() (idempotency.Result, error) {
	res, err := operator.Answer(v.Code, v.Failure, v.Resource, v.ContentType, v.Answer)
	if errors.Is(err, operator.ErrCode) {
		err = fmt.Errorf("--code: %w", err)
	}
	return res, err
}

// Verb implements Of.
func (v CompleteOperation) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "keys complete",
		Title:   v.titled("Complete"),
		Help: `Its callers get this answer from now on, as if the service had given it, for as long as the service keeps its own. Without --body they
get an empty one, unless the service renders --resource.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			res, err := v.result()
			if err != nil {
				return Done{}, err
			}
			return Done{"It is completed: its callers get this answer from now on.", v.values()},
				o.Complete(ctx, v.key(), res, reason)
		},
	}
}

func (v CompleteOperation) check() error {
	if err := v.key().Check(); err != nil {
		return err
	}
	_, err := v.result()
	return err
}

// FreeOperation declares that an operation has not happened.
type FreeOperation struct {
	OfOperation
	Sure bool `line:"" help:"Required: nothing of it has happened, and nothing that is under way can make it happen."`
}

// Verb implements Of.
func (v FreeOperation) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "keys free",
		Title:   v.titled("Free"),
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			return Done{"The key is free. Nothing tries again by itself: its caller has to, or whoever holds the " +
				"row of the outcome.", v.values()}, o.Free(ctx, v.key(), reason)
		},
	}
}

func (v FreeOperation) check() error {
	if !v.Sure {
		return errors.New("--sure is missing: ask the provider first, for a key that is freed although its operation " +
			"has happened lets the caller do it twice")
	}
	return v.key().Check()
}
