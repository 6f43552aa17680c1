package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/service"
)

type inboxConsumersCommand struct {
	lookingInbox
}

// Help is the longer text of --help.
func (*inboxConsumersCommand) Help() string {
	return `Offsets are those that the inbox writes down: at an assignment, at a halt, and every ten seconds. The group's own are in Kafka.`
}

func (c *inboxConsumersCommand) run(ctx context.Context, p *program) error {
	return c.look(ctx, p, func(ctx context.Context, o *inbox.Operator) error {
		list, err := o.Consumers(ctx)
		if err != nil {
			return err
		}
		const head = "CONSUMER\tDEDUP\tWINDOW\tFLOOR\tLAST START\tPARTITION\tFROM\tTO\tATTEMPTS\tHALTED\tCODE\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, s inbox.ConsumerState) {
			dedup := s.Dedup
			if s.IDsUntil != nil && time.Now().Before(*s.IDsUntil) {
				dedup += " and id"
			}
			window := fmt.Sprintf("%d days", int(s.Window.Hours()/24))
			if s.RetiredAt != nil {
				window = "retired"
			}
			begin := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", s.Consumer, dedup, window, s.Floor.Format(time.DateOnly), age(time.Since(s.SeenAt), true))
			if len(s.Partitions) == 0 {
				fmt.Fprintf(table, "%s\t-\t-\t-\t-\t-\t-\t-\n", begin)
			}
			for _, t := range s.Partitions {
				halted := "-"
				if t.HaltedAt != nil {
					halted = age(time.Since(*t.HaltedAt), true)
				}
				fmt.Fprintf(table, "%s\t%s/%d\t%d\t%d\t%d\t%s\t%s\t%s\n", begin, t.Topic, t.Partition, t.From, t.To, t.Attempts, halted, cmp.Or(t.Code, "-"), reasonOf(t.Reason))
			}
		})
	})
}

type inboxResumeCommand struct {
	changingInbox
	Topic     string `shown:"(required)" help:"Topic of the halted partition."`
	Partition int32  `default:"-1" shown:"(required)" help:"Its number."`
}

// Help is the longer text of --help.
func (*inboxResumeCommand) Help() string {
	return `A partition halts where going on would lose an event or break an order. Mend the cause first: relay doctor and relay inbox consumers
say what it is. The event at which it halted runs again, with its counted runs at zero.`
}

func (c *inboxResumeCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" || c.Partition < 0 {
		return service.Usage("--topic and --partition say what is to go on; relay inbox consumers lists what has halted")
	}
	if err := c.needed(); err != nil {
		return err
	}
	return c.change(ctx, p, func(ctx context.Context, o *inbox.Operator) error {
		if err := o.Resume(ctx, c.Topic, c.Partition, c.Reason); err != nil {
			return err
		}
		return c.say(p)(map[string]any{"topic": c.Topic, "partition": c.Partition}, "Partition %s/%d goes on within seconds, where it halted.", c.Topic, c.Partition)
	})
}

type inboxAuditCommand struct {
	lookingInbox
	Limit int `default:"100" help:"Most that are listed, the newest first."`
}

func (c *inboxAuditCommand) run(ctx context.Context, p *program) error {
	if c.Limit <= 0 {
		return service.Usage("--limit: want a number above zero")
	}
	return c.look(ctx, p, func(ctx context.Context, o *inbox.Operator) error {
		list, err := o.Audit(ctx, c.Limit)
		if err != nil {
			return err
		}
		const head = "AT\tOPERATOR\tACTION\tCONSUMER\tTOPIC\tKEY\tMESSAGE ID\tREASON\tDETAIL"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, a inbox.Audited) {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.At.UTC().Format(time.RFC3339), shown(a.Operator), a.Action, cmp.Or(a.Consumer, "-"),
				cmp.Or(a.Topic, "-"), shown(a.Key), idOrNone(a.MessageID), shown(a.Reason), a.Detail)
		})
	})
}
