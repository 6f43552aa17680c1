package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
)

// scheduledCommand has the operators' commands for scheduled events.
type scheduledCommand struct {
	List   scheduledListCommand   `cmd:"" help:"List events that are to be published later, the next one first."`
	Cancel scheduledCancelCommand `cmd:"" help:"Delete one of them for good."`
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
		const head = "SEQ\tDUE\tTOPIC\tTENANT\tKEY\tTYPE\tBYTES\tID"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, e operator.ScheduledEvent) {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%q\t%s\t%d\t%s\n", e.Seq, e.Due.UTC().Format(time.RFC3339Nano), e.Topic,
				cmp.Or(e.Tenant, "-"), e.Key, e.Type, e.Bytes, idOrNone(e.MessageID))
		})
	})
}

type scheduledCancelCommand struct {
	database
	auditFlags
	jsonFlag
	Seq     int64         `line:"" default:"0" shown:"(required)" help:"Which event, as the list names it."`
	Due     string        `line:"" shown:"(required)" help:"When it is due, as the list shows it."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

func (c *scheduledCancelCommand) run(ctx context.Context, p *program) error {
	if c.Seq <= 0 {
		return service.Usage("--seq is missing: relay scheduled list shows it")
	}
	due, err := time.Parse(time.RFC3339, c.Due)
	if err != nil {
		return service.Usage("--due wants the time that relay scheduled list shows, such as 2026-01-02T15:04:05.678Z")
	}
	return c.change(ctx, p, c.Timeout, c.auditFlags, func(ctx context.Context, o *operator.Operator) error {
		if err := o.CancelScheduled(ctx, c.Seq, due, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"seq": c.Seq, "due": due}, "Event %d will not be published.", c.Seq)
	})
}
