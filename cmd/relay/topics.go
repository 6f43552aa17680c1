package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/relay/operator"
)

// topicsCommand has the operators' commands for topics.
type topicsCommand struct {
	List          topicsListCommand    `cmd:"" help:"Show pinned partition counts, pauses, and what is held."`
	Show          topicsShowCommand    `cmd:"" help:"Show one topic: its partitions here and in Kafka, what is held, and what accepting a count would risk."`
	Accept        topicsAcceptCommand  `cmd:"" help:"Accept that a topic has another partition count."`
	AcceptCluster topicsClusterCommand `cmd:"" help:"Accept that the topics are in another Kafka cluster."`
	Pause         topicsPauseCommand   `cmd:"" help:"Hold a topic's events instead of publishing them."`
	Held          topicsHeldCommand    `cmd:"" help:"List held events, in the order in which they will be published."`
	Discard       topicsDiscardCommand `cmd:"" help:"Delete held events for good."`
	Resume        topicsResumeCommand  `cmd:"" help:"Publish the held events, and continue."`
}

type topicsListCommand struct {
	outboxRead
}

func (c *topicsListCommand) run(ctx context.Context, p *program) error {
	return c.read(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.Topics(ctx)
		if err != nil {
			return err
		}
		const head = "TOPIC\tPARTITIONS\tHELD\tPAUSED\tBY\tREASON"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, t operator.Topic) {
			paused := "-"
			if t.PausedAt != nil {
				paused = t.PausedAt.UTC().Format(time.RFC3339)
			}
			fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\n", t.Topic, t.Partitions, t.Held, paused,
				cmp.Or(t.PausedBy, "-"), cmp.Or(t.Reason, "-"))
		})
	})
}

// topicChange is a change of one topic.
type topicChange struct {
	database
	auditFlags
	jsonFlag
	Topic   string        `line:"" shown:"(required)" help:"Which topic."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

func (c topicChange) change(ctx context.Context, p *program,
	do func(ctx context.Context, o *operator.Operator) error,
) error {
	if c.Topic == "" {
		return service.Usage("--topic is missing")
	}
	return c.database.change(ctx, p, c.Timeout, c.auditFlags, do)
}

type topicsAcceptCommand struct {
	topicChange
	kafkaconn.Config `group:"Kafka:"`
	Partitions       int  `line:"" default:"0" shown:"(required)" help:"The count that the topic has now."`
	Anyway           bool `line:"" help:"Accept although events of the topic may be sent again, and then to another partition than the first time."`
}

// Help is the longer text of --help.
func (*topicsAcceptCommand) Help() string {
	return `Relays refuse a topic whose partition count is not the pinned one, because its keys would move to other partitions. Before you
accept the new count, let every consumer read the topic to its end. Otherwise it may apply a key's next event, from the new
partition, before earlier ones that it has not read in the old partition. Relays continue within 30 s. With --kafka-brokers a count
that the topic does not have is refused.`
}

func (c *topicsAcceptCommand) run(ctx context.Context, p *program) error {
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		if err := c.compare(ctx); err != nil {
			return err
		}
		if err := o.AcceptPartitions(ctx, c.Topic, c.Partitions, c.Anyway, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"topic": c.Topic, "partitions": c.Partitions}, "Topic %s is pinned to %d "+
			"partitions.", c.Topic, c.Partitions)
	})
}

// compare refuses a count that the topic does not have: relays would refuse the topic for it. Without brokers nobody
// knows.
func (c *topicsAcceptCommand) compare(ctx context.Context) error {
	if len(c.Brokers) == 0 || c.Partitions < 1 {
		return nil
	}
	conn, err := c.New(kafkaTokens)
	if err != nil {
		return &service.UsageError{Err: err}
	}
	in, err := doctor.ReadTopic(ctx, conn, c.Topic, nil)
	switch {
	case len(in.Partitions) > 0 && len(in.Partitions) != c.Partitions:
		return service.Usage("topic %s has %d partitions in Kafka, not %d", c.Topic, len(in.Partitions), c.Partitions)
	case len(in.Partitions) == 0 && err != nil:
		return fmt.Errorf("kafka (without --kafka-brokers it is not asked): %w", err)
	}
	return nil
}

type topicsClusterCommand struct {
	database
	auditFlags
	jsonFlag
	Cluster string        `line:"" shown:"(required)" help:"Id of the cluster, as relays and relay doctor show it."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// Help is the longer text of --help.
func (*topicsClusterCommand) Help() string {
	return `Relays refuse brokers of another cluster than the one that they have published to. Before you accept it, let every consumer
read the old topics to their ends: events that only they hold are not published again. Relays continue within seconds.`
}

func (c *topicsClusterCommand) run(ctx context.Context, p *program) error {
	if c.Cluster == "" {
		return service.Usage("--cluster is missing: relay doctor shows its id")
	}
	return c.change(ctx, p, c.Timeout, c.auditFlags, func(ctx context.Context, o *operator.Operator) error {
		if err := o.AcceptCluster(ctx, c.Cluster, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"cluster": c.Cluster}, "The outbox is pinned to Kafka cluster %s.", c.Cluster)
	})
}

type topicsPauseCommand struct{ topicChange }

// Help is the longer text of --help.
func (*topicsPauseCommand) Help() string {
	return `The relays hold the topic's events, in order, and publish the other topics. Requests that are under way still complete.
The events stay in the database until relay topics resume.`
}

func (c *topicsPauseCommand) run(ctx context.Context, p *program) error {
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		known, err := o.KnowsTopic(ctx, c.Topic)
		if err == nil {
			err = o.PauseTopic(ctx, c.Topic, c.Reason)
		}
		if err != nil {
			return err
		}
		doubt := ""
		if !known {
			doubt = " This outbox has never published to it, and no event that is next is for it: is that its name?"
		}
		return c.report(p, map[string]any{"topic": c.Topic, "known": known}, "Topic %s is paused.%s", c.Topic, doubt)
	})
}

type topicsResumeCommand struct{ topicChange }

func (c *topicsResumeCommand) run(ctx context.Context, p *program) error {
	return c.change(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		if err := o.ResumeTopic(ctx, c.Topic, c.Reason); err != nil {
			return err
		}
		return c.report(p, map[string]any{"topic": c.Topic}, "Topic %s goes on.", c.Topic)
	})
}

type topicsHeldCommand struct {
	outboxRead
	Topic string `line:"" shown:"(required)" help:"Which topic."`
	Limit int    `line:"" default:"100" help:"Most that are listed."`
}

func (c *topicsHeldCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" || c.Limit <= 0 {
		return service.Usage("--topic is missing, or --limit is no number above zero")
	}
	return c.read(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.HeldEvents(ctx, c.Topic, c.Limit)
		if err != nil {
			return err
		}
		const head = "PARTITION\tMESSAGE ID\tTENANT\tKEY\tTYPE\tBYTES\tHELD\tMAY BE IN KAFKA"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, e operator.HeldEvent) {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", e.Partition, e.MessageID, shown(e.Tenant),
				shown(e.Key), e.Type, e.Bytes,
				age(time.Since(e.HeldAt), true), yesNo(e.MaybePublished))
		})
	})
}

type topicsDiscardCommand struct {
	database
	changeFlags
	Topic     string `line:"" shown:"(required)" help:"Which topic."`
	MessageID string `line:"" name:"message-id" help:"Only the event with this id (ce_id)."`
	All       bool   `line:"" help:"All that is held for the topic."`
}

// Help is the longer text of --help.
func (*topicsDiscardCommand) Help() string {
	return `Held events are published by themselves once their partition or topic accepts them. Discard those that never can be: the topic no longer
exists, or one event (--message-id) blocks a partition. The events held behind it are then published without it.`
}

func (c *topicsDiscardCommand) run(ctx context.Context, p *program) error {
	id, err := messageID(c.MessageID)
	switch {
	case err != nil:
		return err
	case c.Topic == "", c.All == (c.MessageID != ""):
		return service.Usage("name what is meant: --topic, and --message-id or --all")
	}
	return c.change(ctx, p, c.Timeout, c.auditFlags, func(ctx context.Context, o *operator.Operator) error {
		var all admin.DiscardResult
		for {
			some, err := o.DiscardHeld(ctx, c.Topic, id, c.Reason)
			if err != nil && (all.Events == 0 || !errors.Is(err, operator.ErrNotHeld)) {
				return err
			}
			all.Events, all.MayAppear = all.Events+some.Events, all.MayAppear+some.MayAppear
			if some.Events < operator.DiscardHeldMost {
				break
			}
		}
		return c.report(p, all, "%d events are given up for good.%s", all.Events, mayAppear(all))
	})
}
