package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/verbs"
)

type acknowledgeCommand struct {
	database
	Args verbs.Acknowledge `embed:""`
	changeFlags
}

// Help is the longer text of --help.
func (c *acknowledgeCommand) Help() string { return c.Args.Verb().Help }

func (c *acknowledgeCommand) run(ctx context.Context, p *program) error {
	if err := checkVerb(c.Args.Verb().Refusal, c.changeFlags); err != nil {
		return err
	}
	name, err := operatorName(p, c.Operator)
	if err != nil {
		return err
	}
	return c.withPool(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		o, err := doctor.NewAcknowledger(pool, c.Schema, name)
		if err == nil {
			err = perform(ctx, p, o, c.Args, c.changeFlags, "")
		}
		return outboxError(err)
	})
}
