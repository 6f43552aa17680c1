package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// keysCommand has the operators' commands for operations of idempotency keys with an unknown outcome.
type keysCommand struct {
	Stuck    keysStuckCommand               `cmd:"" help:"List operations whose outcome is unknown and that recovery gave up."`
	Unknown  keysUnknownCommand             `cmd:"" help:"List operations whose outcome recovery is still determining, the next one first."`
	Retry    keysVerb[verbs.RetryOperation] `cmd:"" help:"Let recovery try again now: one operation, or all with a name."`
	Complete keysCompleteCommand            `cmd:"" help:"Declare that an operation has happened, and set the answer for its callers."`
	Free     keysVerb[verbs.FreeOperation]  `cmd:"" help:"Declare that an operation has not happened and cannot happen any more: its key is free again."`
	Audit    keysAuditCommand               `cmd:"" help:"List what people did with keys, the newest first."`
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

// keysVerb is a command that changes something of the keys.
type keysVerb[V verbs.Of[*keysoperator.Operator]] struct {
	keysDatabase
	Args V `embed:""`
	changeFlags
}

// Help is the longer text of --help.
func (c *keysVerb[V]) Help() string { return c.Args.Verb().Help }

func (c *keysVerb[V]) run(ctx context.Context, p *program) error {
	if err := checkVerb(c.Args.Verb().Refusal, c.changeFlags); err != nil {
		return err
	}
	return c.operate(ctx, p, c.Timeout, c.Operator, func(ctx context.Context, o *keysoperator.Operator) error {
		return perform(ctx, p, o, c.Args, c.changeFlags, "")
	})
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
		p.endsAt(c.Limit, len(list))
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

type keysCompleteCommand struct {
	keysVerb[verbs.CompleteOperation]
}

func (c *keysCompleteCommand) run(ctx context.Context, p *program) error {
	if c.Args.Body != "" {
		var err error
		if c.Args.Answer, err = os.ReadFile(c.Args.Body); err != nil {
			return service.Usage("--body: %w", err)
		}
	}
	return c.keysVerb.run(ctx, p)
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
		p.endsAt(c.Limit, len(list))
		const head = "AT\tOPERATOR\tACTION\tOPERATION\tTENANT\tKEY\tREASON\tDETAIL"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, a admin.AuditEntry) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%q\t%s\t%s\n", a.At.UTC().Format(time.RFC3339), shown(a.Operator),
				a.Action, a.Operation, cmp.Or(a.Tenant, "-"), a.Key, shown(a.Reason), a.Detail)
		})
	})
}
