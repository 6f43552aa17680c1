package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// scheduledCommand has the operators' commands for scheduled events.
type scheduledCommand struct {
	List   scheduledListCommand              `cmd:"" help:"List events that are to be published later, the next one first."`
	Cancel outboxVerb[verbs.CancelScheduled] `cmd:"" help:"Delete one of them for good."`

	CancelAll outboxVerb[verbs.CancelAllScheduled] `cmd:"" help:"Delete all of a topic, or of a key or tenant in it."`
}

type scheduledListCommand struct {
	outboxRead
	Topic  string  `line:"" shown:"(any)" help:"Only of this topic."`
	Key    *string `line:"" shown:"(any)" help:"Only of this key."`
	Tenant *string `line:"" shown:"(any)" help:"Only of this tenant."`
	Limit  int     `line:"" default:"100" help:"Most that are listed."`
}

func (c *scheduledListCommand) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit wants a number above zero")
	}
	return c.read(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.Scheduled(ctx, operator.ScheduledFilter{
			Topic: c.Topic, Key: c.Key, Tenant: c.Tenant,
			Limit: c.Limit,
		})
		if err != nil {
			return err
		}
		p.endsAt(c.Limit, len(list))
		const head = "SEQ\tDUE\tTOPIC\tTENANT\tKEY\tTYPE\tBYTES\tID"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, e operator.ScheduledEvent) {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%q\t%s\t%d\t%s\n", e.Seq, e.Due.UTC().Format(time.RFC3339Nano), e.Topic,
				cmp.Or(e.Tenant, "-"), e.Key, e.Type, e.Bytes, idOrNone(e.MessageID))
		})
	})
}
