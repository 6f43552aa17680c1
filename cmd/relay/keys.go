package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/idempotency"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
)

// keysCommand has the operators' commands for operations of idempotency keys with an unknown outcome.
type keysCommand struct {
	Stuck    keysStuckCommand    `cmd:"" help:"List operations whose outcome is unknown and that recovery gave up."`
	Unknown  keysUnknownCommand  `cmd:"" help:"List operations whose outcome recovery is still determining, the next one first."`
	Retry    keysRetryCommand    `cmd:"" help:"Let recovery try again now: one operation, or all with a name."`
	Complete keysCompleteCommand `cmd:"" help:"Declare that an operation has happened, and set the answer for its callers."`
	Free     keysFreeCommand     `cmd:"" help:"Declare that an operation has not happened and cannot happen any more: its key is free again."`
	Audit    keysAuditCommand    `cmd:"" help:"List what people did with keys, the newest first."`
}

// keysDatabase opens the keys.
type keysDatabase struct{ database }

// operate runs do with an operator of the keys, in the name of a person.
func (d keysDatabase) operate(ctx context.Context, p *program, timeout time.Duration, name string,
	do func(ctx context.Context, o *keysoperator.Operator) error,
) error {
	name, err := operatorName(p, name)
	if err != nil {
		return err
	}
	return d.withPool(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		o, err := keysoperator.New(pool, d.Schema, name)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		if err = do(ctx, o); wrongSchema(err) {
			return fmt.Errorf("the tables of keys are missing or old: run `relay migrate --sets idempotency`, or set "+
				"--schema: %w", err)
		}
		return withAdvice(err)
	})
}

// ofOperation names one operation, and the reason for its change.
type ofOperation struct {
	keysDatabase
	auditFlags
	jsonFlag
	Tenant    string        `line:"" shown:"(none)" help:"Tenant of the operation."`
	Operation string        `line:"" shown:"(required)" help:"Its name, as relay keys stuck lists it."`
	Key       string        `line:"" shown:"(required)" help:"Its key."`
	Timeout   time.Duration `default:"30s" help:"How long it may take."`
}

// change runs do for the operation.
func (c ofOperation) change(ctx context.Context, p *program, done string,
	do func(ctx context.Context, o *keysoperator.Operator, k idempotency.Key) error,
) error {
	k := idempotency.Key{Tenant: c.Tenant, Operation: c.Operation, Value: c.Key}
	if err := k.Check(); err != nil {
		return &service.UsageError{Err: err}
	}
	if err := c.check(); err != nil {
		return err
	}
	err := c.operate(ctx, p, c.Timeout, c.Operator, func(ctx context.Context, o *keysoperator.Operator) error {
		return do(ctx, o, k)
	})
	if err != nil {
		return err
	}
	return c.report(p, map[string]any{"tenant": k.Tenant, "operation": k.Operation, "key": k.Value}, "%s", done)
}

// keysList is a command that lists operations.
type keysList struct {
	keysDatabase
	readFlags
	Operation string `line:"" shown:"(any)" help:"Only of this name."`
	Limit     int    `line:"" default:"100" help:"Most that are listed."`
}

func (c *keysList) list(ctx context.Context, p *program,
	read func(o *keysoperator.Operator, ctx context.Context, f keysoperator.Filter) ([]keysoperator.Operation, error),
) error {
	if c.Limit <= 0 {
		return service.Usage("--limit wants a number above zero")
	}
	return c.operate(ctx, p, c.Timeout, nobody, func(ctx context.Context, o *keysoperator.Operator) error {
		list, err := read(o, ctx, keysoperator.Filter{Operation: c.Operation, Limit: c.Limit})
		if err != nil {
			return err
		}
		return writeOperations(p.stdout, c.JSON, list)
	})
}

func writeOperations(w io.Writer, asJSON bool, list []keysoperator.Operation) error {
	const head = "OPERATION\tTENANT\tKEY\tSTAGE\tOPEN STEP\tDOWNSTREAM KEY\tATTEMPTS\tAGE\tREASON"
	return writeList(w, asJSON, list, head, func(table io.Writer, k keysoperator.Operation) {
		fmt.Fprintf(table, "%s\t%s\t%q\t%s\t%s\t%s\t%d\t%s\t%q\n", k.Operation, cmp.Or(k.Tenant, "-"), k.Key, k.Stage,
			cmp.Or(k.Open, "-"), cmp.Or(k.Asked, "-"), k.Attempts, age(k.Age, true), k.Reason)
	})
}

type keysStuckCommand struct{ keysList }

// Help is the longer text of --help.
func (*keysStuckCommand) Help() string {
	return `Ask the provider about the open step, by its downstream key. Then run relay keys complete if it happened, relay keys free if it did
not and cannot happen any more, or relay keys retry if recovery can ask again. See docs/idempotency.md.`
}

func (c *keysStuckCommand) run(ctx context.Context, p *program) error {
	return c.list(ctx, p, (*keysoperator.Operator).Stuck)
}

type keysUnknownCommand struct{ keysList }

func (c *keysUnknownCommand) run(ctx context.Context, p *program) error {
	return c.list(ctx, p, (*keysoperator.Operator).Unknown)
}

type keysRetryCommand struct {
	ofOperation
	All bool `line:"" help:"All that are stuck of this name, after an outage of their provider, in place of --key."`
}

func (c *keysRetryCommand) run(ctx context.Context, p *program) error {
	if !c.All {
		return c.change(ctx, p, "Recovery tries once more.", func(ctx context.Context, o *keysoperator.Operator,
			k idempotency.Key,
		) error {
			return o.Retry(ctx, k, c.Reason)
		})
	}
	if c.Key != "" || c.Tenant != "" || c.Operation == "" {
		return service.Usage("--all wants --operation, and neither --key nor --tenant")
	}
	if err := c.check(); err != nil {
		return err
	}
	return c.operate(ctx, p, c.Timeout, c.Operator, func(ctx context.Context, o *keysoperator.Operator) error {
		n, err := o.RetryAll(ctx, c.Operation, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"operations": n}, "Recovery tries %d operations once more.", n)
	})
}

type keysCompleteCommand struct {
	ofOperation
	Code        int    `line:"" shown:"(required)" default:"0" help:"The status that its callers are told: 201."`
	Resource    string `line:"" shown:"(none)" help:"What it made: an id, as the service keeps it."`
	Body        string `line:"" shown:"(none)" help:"File with the answer's body." placeholder:"FILE"`
	ContentType string `line:"" default:"application/json" help:"Of the body."`
	Failure     string `line:"" shown:"(it succeeded)" help:"The stable code of a final refusal: card_declined."`
}

// Help is the longer text of --help.
func (*keysCompleteCommand) Help() string {
	return `Its callers get this answer from now on, as if the service had given it, for as long as the service keeps its own. Without --body they
get an empty one, unless the service renders --resource.`
}

func (c *keysCompleteCommand) run(ctx context.Context, p *program) error {
	var body []byte
	if c.Body != "" {
		var err error
		if body, err = os.ReadFile(c.Body); err != nil {
			return service.Usage("--body: %w", err)
		}
	}
	res, err := keysoperator.Answer(c.Code, c.Failure, c.Resource, c.ContentType, body)
	if errors.Is(err, keysoperator.ErrCode) {
		return service.Usage("--code: %w", err)
	}
	return c.change(ctx, p, "It is completed.", func(ctx context.Context, o *keysoperator.Operator,
		k idempotency.Key,
	) error {
		return o.Complete(ctx, k, res, c.Reason)
	})
}

type keysFreeCommand struct {
	ofOperation
	Sure bool `line:"" help:"Required: nothing of it has happened, and nothing that is under way can make it happen."`
}

func (c *keysFreeCommand) run(ctx context.Context, p *program) error {
	if !c.Sure {
		return service.Usage("--sure is missing: ask the provider first, for a key that is freed although its " +
			"operation has happened lets the caller do it twice")
	}
	return c.change(ctx, p, "The key is free.", func(ctx context.Context, o *keysoperator.Operator,
		k idempotency.Key,
	) error {
		return o.Free(ctx, k, c.Reason)
	})
}

type keysAuditCommand struct {
	keysDatabase
	readFlags
	Limit int `line:"" default:"100" help:"Most that are listed, the newest first."`
}

func (c *keysAuditCommand) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit: want a number above zero")
	}
	return c.operate(ctx, p, c.Timeout, nobody, func(ctx context.Context, o *keysoperator.Operator) error {
		list, err := o.Audit(ctx, c.Limit)
		if err != nil {
			return err
		}
		const head = "AT\tOPERATOR\tACTION\tOPERATION\tTENANT\tKEY\tREASON\tDETAIL"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, a admin.AuditEntry) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%q\t%s\t%s\n", a.At.UTC().Format(time.RFC3339), shown(a.Operator),
				a.Action, a.Operation, cmp.Or(a.Tenant, "-"), a.Key, shown(a.Reason), a.Detail)
		})
	})
}
