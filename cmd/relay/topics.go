package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// topicsCommand has the operators' commands for topics.
type topicsCommand struct {
	List          topicsListCommand             `cmd:"" help:"Show pinned partition counts, pauses, and what is held."`
	Show          topicsShowCommand             `cmd:"" help:"Show one topic: its partitions here and in Kafka, what is held, and what accepting a count would risk."`
	Accept        topicsAcceptCommand           `cmd:"" help:"Accept that a topic has another partition count."`
	AcceptCluster topicsAcceptClusterCommand    `cmd:"" help:"Accept that the topics are in another Kafka cluster."`
	Pause         outboxVerb[verbs.PauseTopic]  `cmd:"" help:"Hold a topic's events instead of publishing them."`
	Held          topicsHeldCommand             `cmd:"" help:"List held events, in the order in which they will be published."`
	Discard       outboxVerb[verbs.DiscardHeld] `cmd:"" help:"Delete held events for good."`
	Resume        outboxVerb[verbs.ResumeTopic] `cmd:"" help:"Publish the held events, and continue."`
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

type topicsAcceptCommand struct {
	outboxVerb[verbs.AcceptPartitions]
	kafkaconn.Config `group:"Kafka:"`
}

func (c *topicsAcceptCommand) run(ctx context.Context, p *program) error {
	return c.runAfter(ctx, p, c.compare)
}

type topicsAcceptClusterCommand struct {
	outboxVerb[verbs.AcceptCluster]
	kafkaconn.Config `group:"Kafka:"`
}

func (c *topicsAcceptClusterCommand) run(ctx context.Context, p *program) error {
	return c.runAfter(ctx, p, func(ctx context.Context) error { return c.compare(ctx, p) })
}

// compare refuses the id of another cluster than the one that answers: relays would refuse that one for it.
func (c *topicsAcceptClusterCommand) compare(ctx context.Context, p *program) error {
	if len(c.Brokers) == 0 {
		p.log.Warn("the id is not compared with the cluster that answers: there are no --kafka-brokers")
		return nil
	}
	conn, err := c.New(kafkaTokens)
	if err != nil {
		return &service.UsageError{Err: err}
	}
	client, closeIdle := conn.Client(kafkaTimeout)
	defer closeIdle()
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{}})
	switch {
	case err != nil:
		return fmt.Errorf("kafka (without --kafka-brokers it is not asked): %w", err)
	case meta.ClusterID != c.Args.Cluster:
		return service.Usage("the brokers that answer are of cluster %s, not of %s", meta.ClusterID, c.Args.Cluster)
	}
	return nil
}

// compare refuses a count that the topic does not have: relays would refuse the topic for it. Without brokers it
// compares nothing.
func (c *topicsAcceptCommand) compare(ctx context.Context) error {
	if len(c.Brokers) == 0 {
		return nil
	}
	topic, want := c.Args.Topic, c.Args.Partitions
	conn, err := c.New(kafkaTokens)
	if err != nil {
		return &service.UsageError{Err: err}
	}
	in, err := doctor.ReadTopic(ctx, conn, topic, nil)
	switch {
	case len(in.Partitions) > 0 && len(in.Partitions) != want:
		return service.Usage("topic %s has %d partitions in Kafka, not %d", topic, len(in.Partitions), want)
	case len(in.Partitions) == 0 && err != nil:
		return fmt.Errorf("kafka (without --kafka-brokers it is not asked): %w", err)
	}
	return nil
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
		p.endsAt(c.Limit, len(list))
		const head = "PARTITION\tMESSAGE ID\tTENANT\tKEY\tTYPE\tBYTES\tHELD\tMAY BE IN KAFKA"
		return writeList(p.stdout, c.JSON, list, head, func(table io.Writer, e operator.HeldEvent) {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", e.Partition, e.MessageID, shown(e.Tenant),
				shown(e.Key), e.Type, e.Bytes,
				age(time.Since(e.HeldAt), true), yesNo(e.MaybePublished))
		})
	})
}
