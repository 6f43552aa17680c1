package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/service"
)

// keysCommand is what people do with operations of idempotency keys that recovery gave up.
type keysCommand struct {
	Stuck    keysStuckCommand    `cmd:"" help:"List operations of which nobody knows the outcome, and that recovery gave up."`
	Retry    keysRetryCommand    `cmd:"" help:"Have recovery try once more, now: one operation, or all of a name."`
	Complete keysCompleteCommand `cmd:"" help:"Say that an operation has happened, and what its callers are to be told."`
	Free     keysFreeCommand     `cmd:"" help:"Say that an operation has not happened, nor can: its key is free again."`
}

// keysDatabase opens the keys.
type keysDatabase struct {
	database
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

func (d keysDatabase) open(ctx context.Context, do func(ctx context.Context, s *pgstore.Store) error) error {
	return d.withPool(ctx, d.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		s, err := pgstore.New(pool, pgstore.Config{Schema: d.Schema})
		if err != nil {
			return &service.UsageError{Err: err}
		}
		if err = do(ctx, s); wrongSchema(err) {
			return fmt.Errorf("the table of keys is missing or old: run `relay migrate --sets idempotency`, or set "+
				"--schema: %w", err)
		}
		return withAdvice(err)
	})
}

// ofOperation names one operation.
type ofOperation struct {
	keysDatabase
	Tenant    string `shown:"(none)" help:"Whose operation."`
	Operation string `shown:"(required)" help:"Its name, as relay keys stuck lists it."`
	Key       string `shown:"(required)" help:"Its key."`
}

// take claims the operation and runs do with it.
func (c ofOperation) take(ctx context.Context, do func(ctx context.Context, s *pgstore.Store,
	taken store.ClaimResult) error,
) error {
	k := idempotency.Key{Tenant: c.Tenant, Operation: c.Operation, Value: c.Key}
	if err := k.Check(); err != nil {
		return &service.UsageError{Err: err}
	}
	return c.open(ctx, func(ctx context.Context, s *pgstore.Store) error {
		taken, err := store.ClaimStuck(ctx, s, k, max(2*c.Timeout, time.Minute))
		if err != nil {
			return err
		}
		return do(ctx, s, taken)
	})
}

type keysStuckCommand struct {
	keysDatabase
	Operation string `shown:"(any)" help:"Only of this name."`
	Limit     int    `default:"100" help:"Most that are listed."`
	JSON      bool   `name:"json" help:"Print JSON instead of a table; without inputs and data of steps."`
}

// stuckKey is an operation as it is listed. What may be personal is left out but for the key.
type stuckKey struct {
	Tenant    string            `json:"tenant"`
	Operation string            `json:"operation"`
	Key       string            `json:"key"`
	Stage     idempotency.Stage `json:"stage"`
	Attempts  int               `json:"attempts"`
	Age       time.Duration     `json:"age"`
	Reason    string            `json:"reason"`
	Open      string            `json:"open_step"`      // of which nobody knows the outcome
	Asked     string            `json:"downstream_key"` // by which the provider can be asked about it
}

// Help is the longer text of --help.
func (*keysStuckCommand) Help() string {
	return `Ask the provider what became of the open step, by its downstream key, and then: relay keys complete when it happened, relay keys
free when it did not and nothing can still make it happen, relay keys retry when recovery can ask again. docs/idempotency.md has all of it.`
}

func (c *keysStuckCommand) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit wants a number above zero")
	}
	return c.open(ctx, func(ctx context.Context, s *pgstore.Store) error {
		found, err := stuck(ctx, s, c.Operation, c.Limit)
		if err != nil {
			return err
		}
		var list []stuckKey
		for _, rec := range found[:min(len(found), c.Limit)] {
			k := stuckKey{
				Tenant: rec.Key.Tenant, Operation: rec.Key.Operation, Key: rec.Key.Value, Stage: rec.Progress.Stage,
				Attempts: rec.Attempts, Age: rec.Age, Reason: rec.Reason,
			}
			for _, step := range rec.Progress.Steps {
				if step.State == store.StepSent || step.State == store.StepUndoing {
					k.Open, k.Asked = step.Name, step.Key
				}
			}
			list = append(list, k)
		}
		const head = "OPERATION\tTENANT\tKEY\tSTAGE\tOPEN STEP\tDOWNSTREAM KEY\tATTEMPTS\tAGE\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, k stuckKey) {
			fmt.Fprintf(table, "%s\t%s\t%q\t%s\t%s\t%s\t%d\t%s\t%q\n", k.Operation, cmp.Or(k.Tenant, "-"), k.Key,
				k.Stage, cmp.Or(k.Open, "-"),
				cmp.Or(k.Asked, "-"), k.Attempts, age(k.Age, true), k.Reason)
		})
	})
}

// stuck lists operations that recovery gave up: those of a name, or with an empty name at most limit of any.
func stuck(ctx context.Context, s *pgstore.Store, operation string, limit int) ([]store.Record, error) {
	if operation == "" {
		return s.Stuck(ctx, limit)
	}
	found, err := s.Stuck(ctx, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	var of []store.Record
	for _, rec := range found {
		if rec.Key.Operation == operation {
			of = append(of, rec)
		}
	}
	return of, nil
}

type keysRetryCommand struct {
	ofOperation
	Reason string `shown:"(required)" help:"Why, in a few words. It is kept as the operation's reason."`
	All    bool   `help:"All that are stuck of this name, after an outage of their provider, in place of --key."`
}

func (c *keysRetryCommand) run(ctx context.Context, p *program) error {
	again := func(ctx context.Context, s *pgstore.Store, taken store.ClaimResult) error {
		return s.MarkUnknown(ctx, taken.Lease, "by hand: "+c.Reason, 0)
	}
	switch {
	case c.Reason == "":
		return service.Usage("--reason is missing: say why")
	case c.All && (c.Key != "" || c.Tenant != "" || c.Operation == ""):
		return service.Usage("--all wants --operation, and neither --key nor --tenant")
	case !c.All:
		err := c.take(ctx, again)
		if err == nil {
			fmt.Fprintln(p.stdout, "Recovery tries once more.")
		}
		return err
	}
	return c.open(ctx, func(ctx context.Context, s *pgstore.Store) error {
		found, err := stuck(ctx, s, c.Operation, math.MaxInt32)
		n := 0
		for _, rec := range found {
			taken, err := store.ClaimStuck(ctx, s, rec.Key, max(2*c.Timeout, time.Minute))
			if errors.Is(err, store.ErrNotStuck) {
				continue
			}
			if err == nil {
				err = again(ctx, s, taken)
			}
			if err != nil {
				return fmt.Errorf("after %d operations: %w", n, err)
			}
			n++
		}
		if err == nil {
			fmt.Fprintf(p.stdout, "Recovery tries %d operations once more.\n", n)
		}
		return err
	})
}

type keysCompleteCommand struct {
	ofOperation
	Code        int    `shown:"(required)" default:"0" help:"The status that its callers are told: 201."`
	Resource    string `shown:"(none)" help:"What it made: an id, as the service keeps it."`
	Body        string `shown:"(none)" help:"File with the answer's body." placeholder:"FILE"`
	ContentType string `default:"application/json" help:"Of the body."`
	Failure     string `shown:"(it succeeded)" help:"The stable code of a final refusal: card_declined."`
}

// Help is the longer text of --help.
func (*keysCompleteCommand) Help() string {
	return `Its callers get this answer from now on, as if the service had given it, for 24 hours; the key stays taken for 72. Without --body they
get an empty one, unless the service renders --resource.`
}

func (c *keysCompleteCommand) run(ctx context.Context, p *program) error {
	if c.Code < 200 || c.Code > 499 {
		return service.Usage("--code wants a status from 200 to 499: what is kept is no failure of the server")
	}
	res := idempotency.Result{Code: c.Code, Resource: c.Resource, Failure: c.Failure}
	if c.Body != "" {
		body, err := os.ReadFile(c.Body)
		if err != nil {
			return service.Usage("--body: %w", err)
		}
		res.Body, res.Header = body, map[string][]string{"Content-Type": {c.ContentType}}
	}
	err := c.take(ctx, func(ctx context.Context, s *pgstore.Store, taken store.ClaimResult) error {
		return s.Finish(ctx, taken.Lease, res, idempotency.Retention{})
	})
	if err == nil {
		fmt.Fprintln(p.stdout, "It is completed.")
	}
	return err
}

type keysFreeCommand struct {
	ofOperation
	Sure bool `help:"Required: nothing of it has happened, and nothing that is under way can make it happen."`
}

func (c *keysFreeCommand) run(ctx context.Context, p *program) error {
	if !c.Sure {
		return service.Usage("--sure is missing: ask the provider first, for a key that is freed although its " +
			"operation has happened lets the caller do it twice")
	}
	err := c.take(ctx, func(ctx context.Context, s *pgstore.Store, taken store.ClaimResult) error {
		return s.Release(ctx, taken.Lease)
	})
	if err == nil {
		fmt.Fprintln(p.stdout, "The key is free.")
	}
	return err
}
