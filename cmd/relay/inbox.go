package main

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/ui/verbs"
)

// inboxCommand has the operators' commands for an inbox.
type inboxCommand struct {
	Maintain  maintainCommand                  `cmd:"" help:"Make the inbox's coming days and drop those that are over, once."`
	Consumers inboxConsumersCommand            `cmd:"" help:"Show the consumers, their windows, and which partitions have halted."`
	Parked    parkedCommand[inboxFlags]        `cmd:"" help:"List, edit, release and discard events whose effects failed permanently."`
	Resume    inboxVerb[verbs.ResumePartition] `cmd:"" help:"Resume a halted partition, or retry a failing event at once."`
	Accept    inboxVerb[verbs.AcceptNumbering] `cmd:"" help:"Let a consumer in watermark mode continue with a new numbering of an outbox."`
	Skip      inboxSkipCommand                 `cmd:"" help:"Skip records that halt a partition and can be neither decided nor parked."`
	Retire    inboxVerb[verbs.Retire]          `cmd:"" help:"Declare a consumer removed, so that its window no longer counts."`
	Move      inboxVerb[verbs.MoveConsumer]    `cmd:"" help:"Switch a consumer from deduplication by id to watermarks or offsets."`
	Forget    inboxVerb[verbs.ForgetOffsets]   `cmd:"" name:"forget-offsets" help:"Let a consumer in offset mode start again on a topic that was created anew."`
	Audit     auditCommand[inboxFlags]         `cmd:"" help:"List what people did with the inbox."`
}

type maintainCommand struct {
	database
	jsonFlag
	DaysAhead    int           `default:"7" help:"How many days of partitions are made ahead of time, 1 to 60. More than the workers' own setting does no harm."`
	BelieveClock bool          `line:"" help:"Trust the database's clock although it is past the last day that was made, and drop days by it again."`
	Timeout      time.Duration `default:"30m" help:"Time limit of the pass; the next pass continues where it stopped."`
}

// Help is the longer text of --help.
func (*maintainCommand) Help() string {
	return `For a cron job that connects as the owner of the tables, or with the maintainer's role (relay migrate --roles --print), where
the workers' own role may not make and drop days. Once a day is enough, several times a day is better: no pass for longer than
--days-ahead stops the consumers.`
}

func (c *maintainCommand) run(ctx context.Context, p *program) error {
	if c.DaysAhead < 1 || c.DaysAhead > 60 {
		return service.Usage("--days-ahead is %d: want 1 to 60", c.DaysAhead)
	}
	return c.withPool(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		info, err := inbox.MaintainAll(ctx, pool, inbox.MaintainConfig{
			Schema: c.Schema, DaysAhead: c.DaysAhead, Logger: p.log, BelieveClock: c.BelieveClock,
		})
		if err != nil {
			return inboxError(err)
		}
		p.log.Info("the inbox is maintained", "days_made", len(info.Made), "days_dropped", len(info.Dropped),
			"rows_cleaned", info.Cleaned)
		return c.print(p, map[string]any{
			"made": orEmpty(info.Made), "dropped": orEmpty(info.Dropped), "cleaned": info.Cleaned,
		})
	})
}

type inboxSkipCommand struct {
	inboxVerb[verbs.SkipRecords]
	kafkaconn.Config
}

func (c *inboxSkipCommand) run(ctx context.Context, p *program) error {
	c.Args.Brokers = strings.Join(c.Brokers, ",")
	return c.runAfter(ctx, p, c.look)
}

// look refuses an offset that the log does not have. Whether the consumer may skip to it comes first.
func (c *inboxSkipCommand) look(ctx context.Context, o *operator.Operator) (note string, err error) {
	v := c.Args
	if len(c.Brokers) == 0 {
		return "\nWithout --kafka-brokers nobody has looked whether the log has that offset.", nil
	}
	if err := o.MaySkipTo(ctx, v.Topic, v.Partition, v.To); err != nil {
		return "", err
	}
	conn, err := c.Config.New(kafkaTokens)
	if err != nil {
		return "", &service.UsageError{Err: err}
	}
	return "", doctor.MaySkip(ctx, conn, v.Topic, v.Partition, v.To)
}
