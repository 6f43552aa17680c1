package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
)

// inboxCommand has the operators' commands for an inbox.
type inboxCommand struct {
	Maintain  maintainCommand           `cmd:"" help:"Make the inbox's coming days and drop those that are over, once."`
	Consumers inboxConsumersCommand     `cmd:"" help:"Show the consumers, their windows, and which partitions have halted."`
	Parked    parkedCommand[inboxFlags] `cmd:"" help:"List, edit, release and discard events whose effects failed permanently."`
	Resume    inboxResumeCommand        `cmd:"" help:"Resume a halted partition, or retry a failing event at once."`
	Accept    inboxAcceptCommand        `cmd:"" help:"Let a consumer in watermark mode continue with a new numbering of an outbox."`
	Skip      inboxSkipCommand          `cmd:"" help:"Skip records that halt a partition and can be neither decided nor parked."`
	Retire    inboxRetireCommand        `cmd:"" help:"Declare a consumer removed, so that its window no longer counts."`
	Move      inboxMoveCommand          `cmd:"" help:"Switch a consumer from deduplication by id to watermarks or offsets."`
	Forget    inboxForgetCommand        `cmd:"" name:"forget-offsets" help:"Let a consumer in offset mode start again on a topic that was created anew."`
	Audit     auditCommand[inboxFlags]  `cmd:"" help:"List what people did with the inbox."`
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

type inboxRetireCommand struct {
	inboxChange
}

// Help is the longer text of --help.
func (*inboxRetireCommand) Help() string {
	return `Days of the inbox are kept for the longest window of all consumers. Stop the workers of a consumer that is no longer needed, and run
this: its window no longer counts. Its parked events stay. If it starts again under this name, it recognizes what it applied in the
days that are left, and quarantines older events.`
}

func (c *inboxRetireCommand) run(ctx context.Context, p *program) error {
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		if err := o.Retire(ctx, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"consumer": c.Consumer}, "Consumer %s is retired. Days are kept for the "+
			"windows of the others.", c.Consumer)
	})
}

type inboxSkipCommand struct {
	inboxChange
	kafkaconn.Config
	Topic     string `line:"" shown:"(required)" help:"Topic of the partition."`
	Partition int32  `line:"" default:"-1" shown:"(required)" help:"Its number."`
	To        int64  `line:"" default:"-1" shown:"(required)" help:"The first offset that is handled again: the one after the record that halts it."`
}

// Help is the longer text of --help.
func (*inboxSkipCommand) Help() string {
	return `For a record that halts its partition and can be neither decided nor parked. Its effect never runs: what the workers read again of the
offsets that were skipped, they drop as repeats, until the topic is made again or its log is cut. Stop the consumer's workers, run this,
set the group to the same offset, and start the workers:
  kafka-consumer-groups.sh --group G --topic T:P --reset-offsets --to-offset N --execute
The group's offset spares the workers a record that they cannot read; with brokers before Kafka 2.8, which do not tell a topic's id, only
it keeps them from what was skipped. If only the group is moved, it returns to the inbox's position. A consumer that has run within the
last two minutes is refused, for its workers would go on from where they are. With --kafka-brokers an offset beyond the end of the log is
refused, too.`
}

func (c *inboxSkipCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" || c.Partition < 0 || c.To < 0 {
		return service.Usage("--topic, --partition and --to say what is skipped; relay inbox consumers shows where " +
			"each partition is")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		if err := o.MaySkipTo(ctx, c.Topic, c.Partition, c.To); err != nil {
			return err
		}
		group, err := o.LastGroup(ctx)
		if err != nil {
			return err
		}
		looked := ""
		if len(c.Brokers) == 0 {
			looked = "\nWithout --kafka-brokers nobody has looked whether the log has that offset."
		} else {
			conn, err := c.Config.New(kafkaTokens)
			if err != nil {
				return &service.UsageError{Err: err}
			}
			if err := doctor.MaySkip(ctx, conn, c.Topic, c.Partition, c.To); err != nil {
				return err
			}
		}
		from, err := o.SkipTo(ctx, c.Topic, c.Partition, c.To, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"topic": c.Topic, "partition": c.Partition, "from": from, "to": c.To},
			"Consumer %s goes on at offset %d of %s/%d, after %d: the effects between do not run. Set its group to "+
				"the same offset as well, before its workers start:\n  %s%s", c.Consumer, c.To, c.Topic, c.Partition,
			from, operator.SetGroup(group, c.Topic, c.Partition, c.To), looked)
	})
}

type inboxAcceptCommand struct {
	inboxChange
	Epoch string `line:"" shown:"(required)" help:"The numbering, as events carry it (ce_epoch): relay inbox consumers shows it in the error of the halt."`
}

// Help is the longer text of --help.
func (*inboxAcceptCommand) Help() string {
	return `An outbox that was fenced, restored or failed over numbers its events anew. A consumer in watermark mode cannot tell repeated events
with new numbers from new events, so each of its partitions halts at the first event of the new numbering. Compare its last
effects with the producers' tables. After this, repeated events are applied again, unless a business key of the effect
prevents it.`
}

func (c *inboxAcceptCommand) run(ctx context.Context, p *program) error {
	if c.Epoch == "" {
		return service.Usage("--epoch is missing: relay inbox consumers shows which numbering a partition waits for")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		n, err := o.AcceptNumbering(ctx, c.Epoch, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"epoch": c.Epoch, "partitions": n}, "Numbering %s is accepted. %d halted "+
			"partitions go on within seconds.", c.Epoch, n)
	})
}

type inboxMoveCommand struct {
	inboxChange
	To string `line:"" shown:"(required)" enum:",watermark,offset" default:"" help:"watermark or offset."`
}

// Help is the longer text of --help.
func (*inboxMoveCommand) Help() string {
	return `Stop the consumer's workers, run this, and start them with the new setting (inbox.Config.Dedup). A consumer that has run within the
last two minutes is refused. For one window from now on the consumer checks ids as well, so that nothing is applied twice. This cannot be
undone: a consumer in watermark or offset mode stores no ids.`
}

func (c *inboxMoveCommand) run(ctx context.Context, p *program) error {
	to, err := operator.MoveTo(c.To)
	if err != nil {
		return service.Usage("--to is missing: watermark or offset")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		until, err := o.Move(ctx, to, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"to": c.To, "ids_until": until}, "Consumer %s deduplicates by %s. Start "+
			"its workers with that setting; until %s they check ids as well.",
			c.Consumer, c.To, until.UTC().Format(time.DateOnly))
	})
}

type inboxForgetCommand struct {
	inboxChange
	Topic string `line:"" shown:"(required)" help:"The topic that was deleted and created again."`
}

// Help is the longer text of --help.
func (*inboxForgetCommand) Help() string {
	return `The offsets of a topic that is created again start at zero, and a consumer in offset mode halts there. After this it applies whatever the
topic holds, from its group's position. For a topic that was not created again, that applies events twice.`
}

func (c *inboxForgetCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" {
		return service.Usage("--topic is missing")
	}
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		n, err := o.ForgetOffsets(ctx, c.Topic, c.Reason)
		if err != nil {
			return err
		}
		return c.report(p, map[string]any{"topic": c.Topic, "partitions": n}, "The offsets of %s are forgotten. %d "+
			"halted partitions go on within seconds.", c.Topic, n)
	})
}
