package verbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
)

// OfPartition names a partition of a consumer.
type OfPartition struct {
	Topic     string `line:"" shown:"(required)" help:"Topic of the partition."`
	Partition int32  `line:"" default:"-1" shown:"(required)" help:"Its number."`
}

// String returns topic/partition.
func (p OfPartition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

func (p OfPartition) check() error {
	if p.Topic == "" || p.Partition < 0 {
		return errors.New("--topic and --partition are required; relay inbox consumers shows where each partition is")
	}
	return nil
}

// ResumePartition resumes a halted partition, or retries a failing event at once.
type ResumePartition struct{ OfPartition }

// Verb implements Of.
func (v ResumePartition) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "inbox resume",
		Title:   "Resume " + v.String(),
		Help: `A partition halts where continuing would lose an event or break the order. Fix the cause first: relay doctor and relay inbox consumers
show it. The event at which the partition halted runs again, with its counter of runs at zero.

In a partition that has not halted, an event that fails and waits for its next attempt (CODE "trying") runs at once. So
does a released event of the partition that waits because its effect answers Retryable.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			return Done{
				fmt.Sprintf("Partition %v resumes within seconds, at its current event.", v.OfPartition),
				map[string]any{"topic": v.Topic, "partition": v.Partition},
			}, o.Resume(ctx, v.Topic, v.Partition, reason)
		},
	}
}

// SkipRecords moves a consumer past records that halt a partition.
type SkipRecords struct {
	OfPartition
	To int64 `line:"" default:"-1" shown:"(required)" help:"The first offset that is handled again: the one after the record that halts it."`

	Brokers string `kong:"-"` // for the command of Kafka's that it tells; empty: unknown
}

// Verb implements Of.
func (v SkipRecords) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "inbox skip",
		Title:   "Skip records of " + v.String(),
		Help: `For a record that halts its partition and can be neither decided nor parked. Its effect never runs: what the workers read again of the
offsets that were skipped, they drop as repeats, until the topic is made again or its log is cut. Stop the consumer's workers, run this,
set the group to the same offset, and start the workers:
  kafka-consumer-groups.sh --bootstrap-server B --group G --topic T:P --reset-offsets --to-offset N --execute
The group's offset spares the workers a record that they cannot read; with brokers before Kafka 2.8, which do not tell a topic's id, only
it keeps them from what was skipped. If only the group is moved, it returns to the inbox's position. A consumer that has run within the
last two minutes is refused, for its workers would go on from where they are. With --kafka-brokers an offset beyond the end of the log is
refused, too.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			group, err := o.LastGroup(ctx)
			if err != nil {
				return Done{}, err
			}
			from, err := o.SkipTo(ctx, v.Topic, v.Partition, v.To, reason)
			return Done{
				fmt.Sprintf("The consumer goes on at offset %d of %v, after %d: the effects between do not run. Set "+
					"its group to the same offset as well, before its workers start:\n  %s", v.To, v.OfPartition, from,
					doctor.SetGroup(v.Brokers, group, v.Topic, v.Partition, v.To)),
				map[string]any{"topic": v.Topic, "partition": v.Partition, "from": from, "to": v.To},
			}, err
		},
	}
}

func (v SkipRecords) check() error {
	if err := v.OfPartition.check(); err != nil || v.To >= 0 {
		return err
	}
	return errors.New("--to says which offset is handled again; relay inbox consumers shows where each partition is")
}

// AcceptNumbering lets a consumer by watermark continue with a new numbering of an outbox.
type AcceptNumbering struct {
	Epoch string `line:"" shown:"(required)" help:"The numbering, as events carry it (ce_epoch): relay inbox consumers shows it in the error of the halt."`
}

// Verb implements Of.
func (v AcceptNumbering) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "inbox accept",
		Title:   "Accept numbering " + Shown(v.Epoch),
		Help: `An outbox that was fenced, restored or failed over numbers its events anew. A consumer in watermark mode cannot tell repeated events
with new numbers from new events, so each of its partitions halts at the first event of the new numbering. Compare its last
effects with the producers' tables. After this, repeated events are applied again, unless a business key of the effect
prevents it.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			n, err := o.AcceptNumbering(ctx, v.Epoch, reason)
			return Done{
				fmt.Sprintf("Numbering %s is accepted. %d halted partitions go on within seconds.", v.Epoch, n),
				map[string]any{"epoch": v.Epoch, "partitions": n},
			}, err
		},
	}
}

func (v AcceptNumbering) check() error {
	if v.Epoch == "" {
		return errors.New("--epoch is missing: relay inbox consumers shows which numbering a partition waits for")
	}
	return nil
}

// MoveConsumer switches a consumer from deduplication by id to another one.
type MoveConsumer struct {
	To string `line:"" shown:"(required)" enum:",watermark,offset" default:"" help:"watermark or offset."`
}

// Verb implements Of.
func (v MoveConsumer) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "inbox move",
		Title:   "Move to " + v.To,
		Help: `Stop the consumer's workers, run this, and start them with the new setting (inbox.Config.Dedup). A consumer that has run within the
last two minutes is refused. For one window from now on the consumer checks ids as well, so that nothing is applied twice. This cannot be
undone: a consumer in watermark or offset mode stores no ids.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			to, err := operator.MoveTo(v.To)
			if err != nil {
				return Done{}, err
			}
			until, err := o.Move(ctx, to, reason)
			return Done{
				fmt.Sprintf("The consumer deduplicates by %s. Start its workers with that setting; until %s they "+
					"check ids as well.", v.To, until.UTC().Format(time.DateOnly)),
				map[string]any{"to": v.To, "ids_until": until},
			}, err
		},
	}
}

func (v MoveConsumer) check() error {
	if _, err := operator.MoveTo(v.To); err != nil {
		return errors.New("--to is missing: watermark or offset")
	}
	return nil
}

// ForgetOffsets lets a consumer by offset start again on a topic that was created anew.
type ForgetOffsets struct {
	Topic string `line:"" shown:"(required)" help:"The topic that was deleted and created again."`
}

// Verb implements Of.
func (v ForgetOffsets) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "inbox forget-offsets",
		Title:   "Forget the offsets of " + v.Topic,
		Help: `The offsets of a topic that is created again start at zero, and a consumer in offset mode halts there. After this it applies whatever the
topic holds, from its group's position. For a topic that was not created again, that applies events twice.`,
		Refusal: checkTopic(v.Topic),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			n, err := o.ForgetOffsets(ctx, v.Topic, reason)
			return Done{
				fmt.Sprintf("The offsets of %s are forgotten. %d halted partitions go on within seconds.", v.Topic, n),
				map[string]any{"topic": v.Topic, "partitions": n},
			}, err
		},
	}
}

// Retire declares a consumer removed.
type Retire struct{}

// Verb implements Of.
func (v Retire) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "inbox retire",
		Title:   "Retire",
		Help: `Days of the inbox are kept for the longest window of all consumers. Stop the workers of a consumer that is no longer needed, and run
this: its window no longer counts. Its parked events stay. If it starts again under this name, it recognizes what it applied in the
days that are left, and quarantines older events.`,
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			return Done{
				"The consumer is retired. Days are kept for the windows of the others; what it has parked stays.",
				map[string]any{"retired": true},
			}, o.Retire(ctx, reason)
		},
	}
}
