package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
)

type auditCommand[S side] struct {
	onSide[S]
	readFlags
	Limit int `line:"" default:"100" help:"Most that are listed, the newest first."`
}

func (c *auditCommand[S]) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit: want a number above zero")
	}
	return c.Side.act(ctx, p, c.Timeout, nobody, func(ctx context.Context, o parkedOperator) error {
		list, err := o.Audit(ctx, c.Limit)
		if err != nil {
			return err
		}
		p.endsAt(c.Limit, len(list))
		w := c.Side.words()
		head := "AT\tOPERATOR\tACTION\t" + w.column("CONSUMER") + "TOPIC\tKEY\tMESSAGE ID\tREASON\tDETAIL"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, a admin.AuditEntry) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s%s\t%s\t%s\t%s\t%s\n", a.At.UTC().Format(time.RFC3339), shown(a.Operator),
				a.Action, w.column(a.Consumer),
				cmp.Or(a.Topic, "-"), shown(a.Key), idOrNone(a.MessageID), shown(a.Reason), a.Detail)
		})
	})
}
