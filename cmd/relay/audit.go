package main

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay"
)

type auditCommand struct {
	looking
	Limit int `default:"100" help:"Most that are listed, the newest first."`
}

func (c *auditCommand) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit: want a number above zero")
	}
	return c.look(ctx, p, func(ctx context.Context, o *relay.Operator) error {
		list, err := o.Audit(ctx, c.Limit)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(p.stdout, orEmpty(list))
		}
		table := tabwriter.NewWriter(p.stdout, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "AT\tOPERATOR\tACTION\tTOPIC\tMESSAGE ID\tREASON\tDETAIL")
		for _, a := range list {
			id := "-"
			if a.MessageID != nil {
				id = a.MessageID.String()
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.At.UTC().Format(time.RFC3339), shown(a.Operator), a.Action, cmp.Or(a.Topic, "-"), id, shown(a.Reason), a.Detail)
		}
		return table.Flush()
	})
}
