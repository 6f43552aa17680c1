package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/relay/operator"
)

type topicsShowCommand struct {
	outboxRead
	kafkaconn.Config `group:"Kafka:"`
	Topic            string `line:"" shown:"(required)" help:"Which topic."`
}

// Help is the longer text of --help.
func (*topicsShowCommand) Help() string {
	return `PARTITIONS is the pinned count; with --kafka-brokers IN KAFKA is the topic's own, and each partition has its leader and the end of its
log. HELD counts up to 100,000; partition -1 is the topic as a whole. PUBLISHING counts the events between claim and settle. The command
also counts the events that may have been written already, which relay topics accept asks about.`
}

// topicShown is a topic in the outbox and in Kafka.
type topicShown struct {
	operator.TopicState
	HeldUncertain int64              `json:"held_uncertain"`
	Kafka         *doctor.KafkaTopic `json:"kafka"` // nil: it was not asked
}

func (c *topicsShowCommand) run(ctx context.Context, p *program) error {
	if c.Topic == "" {
		return service.Usage("--topic is missing")
	}
	return c.read(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		st, err := o.TopicState(ctx, c.Topic)
		if err != nil {
			return err
		}
		shown := topicShown{TopicState: st, HeldUncertain: st.HeldUncertain()}
		if len(c.Brokers) > 0 {
			conn, err := c.New(kafkaTokens)
			if err != nil {
				return &service.UsageError{Err: err}
			}
			in, err := doctor.ReadTopic(ctx, conn, c.Topic, nil)
			if err != nil {
				// Not wrapped: the end of a broker's time is no wait for a lock of the database.
				return errors.New("kafka (without --kafka-brokers it is left out): " + err.Error())
			}
			shown.Kafka = &in
		}
		if c.JSON {
			return writeJSON(p.stdout, shown)
		}
		return shown.write(p.stdout)
	})
}

func (s topicShown) write(w io.Writer) error {
	table := newTable(w)
	there, paused := "-", "-"
	if s.Kafka != nil {
		there = fmt.Sprint(len(s.Kafka.Partitions))
	}
	if s.PausedAt != nil {
		paused = s.PausedAt.UTC().Format(time.RFC3339)
	}
	fmt.Fprintln(table, "TOPIC\tPARTITIONS\tIN KAFKA\tCLUSTER\tPUBLISHING\tHELD\tPAUSED\tBY\tREASON")
	fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", s.Topic.Topic, s.Partitions, there,
		cmp.Or(s.Cluster, "-"), s.Publishing, s.Held, paused, cmp.Or(s.PausedBy, "-"), cmp.Or(s.Reason, "-"))
	fmt.Fprintln(table, "\nPARTITION\tLEADER\tIN SYNC\tEND\tHELD\tSINCE\tMAY BE IN KAFKA")
	for _, l := range s.lines() {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s\t%d\n", l.partition, l.leader, l.inSync, l.end, l.Events,
			age(time.Since(l.Since), l.Events > 0), l.MaybePublished)
	}
	if s.Uncertain {
		fmt.Fprintf(table, "\n%d events are being published and %d are held: %v\n", s.Publishing, s.HeldUncertain,
			operator.ErrUncertain)
	}
	return table.Flush()
}

type partitionLine struct {
	operator.HeldPartition
	partition           int
	leader, inSync, end string
}

// lines returns the partitions that Kafka has, and those that events are held for.
func (s topicShown) lines() (list []partitionLine) {
	if s.Kafka != nil {
		for _, p := range s.Kafka.Partitions {
			l := partitionLine{
				partition: p.Partition, leader: cmp.Or(p.Leader, "none"), end: "-",
				inSync: fmt.Sprintf("%d/%d", p.InSync, p.Replicas),
			}
			if p.End >= 0 {
				l.end = fmt.Sprint(p.End)
			}
			list = append(list, l)
		}
	}
	for _, h := range s.HeldIn {
		at := slices.IndexFunc(list, func(l partitionLine) bool { return l.partition == int(h.Partition) })
		if at < 0 {
			at, list = len(list), append(list, partitionLine{
				partition: int(h.Partition), leader: "-", inSync: "-", end: "-",
			})
		}
		list[at].HeldPartition = h
	}
	return list
}
