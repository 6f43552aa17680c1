package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
)

type auditCommand struct {
	looking
	Limit int `default:"100" help:"Most that are listed, the newest first."`
}

func (c *auditCommand) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit: want a number above zero")
	}
	return c.look(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.Audit(ctx, c.Limit)
		if err != nil {
			return err
		}
		const head = "AT\tOPERATOR\tACTION\tTOPIC\tMESSAGE ID\tREASON\tDETAIL"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, a operator.AuditEntry) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.At.UTC().Format(time.RFC3339), shown(a.Operator), a.Action, cmp.Or(a.Topic, "-"), idOrNone(a.MessageID), shown(a.Reason), a.Detail)
		})
	})
}
