package verbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/relay/operator"
)

// AcceptPartitions pins a topic to another partition count.
type AcceptPartitions struct {
	Topic      string `line:"" shown:"(required)" help:"Which topic."`
	Partitions int    `line:"" default:"0" shown:"(required)" help:"The count that the topic has now."`
	Anyway     bool   `line:"" help:"Accept although events of the topic may be sent again, and then to another partition than the first time."`
}

// Verb implements Of.
func (v AcceptPartitions) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "topics accept",
		Title:   "Accept partitions of " + v.Topic,
		Help: `Relays refuse a topic whose partition count is not the pinned one, because its keys would move to other partitions. Before you
accept the new count, let every consumer read the topic to its end. Otherwise it may apply a key's next event, from the new
partition, before earlier ones that it has not read in the old partition. Relays continue within 30 s. With --kafka-brokers a count
that the topic does not have is refused.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			return Done{
				fmt.Sprintf("Topic %s is pinned to %d partitions. Relays continue within 30 s.", v.Topic, v.Partitions),
				map[string]any{"topic": v.Topic, "partitions": v.Partitions},
			}, o.AcceptPartitions(ctx, v.Topic, v.Partitions, v.Anyway, reason)
		},
	}
}

func (v AcceptPartitions) check() error {
	if err := checkTopic(v.Topic); err != nil || v.Partitions > 0 {
		return err
	}
	return errors.New("--partitions wants the count that the topic has now, at least 1")
}

// AcceptCluster pins the outbox to another Kafka cluster.
type AcceptCluster struct {
	Cluster string `line:"" shown:"(required)" help:"Id of the cluster, as relays and relay doctor show it."`
}

// Verb implements Of.
func (v AcceptCluster) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "topics accept-cluster",
		Title:   "Accept cluster " + Shown(v.Cluster),
		Help: `Relays refuse brokers of another cluster than the one that they have published to. Before you accept it, let every consumer
read the old topics to their ends: events that only they hold are not published again. Relays continue within seconds.`,
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			return Done{
				fmt.Sprintf("The outbox is pinned to Kafka cluster %s. Relays continue within seconds.",
					Shown(v.Cluster)),
				map[string]any{"cluster": v.Cluster},
			}, o.AcceptCluster(ctx, v.Cluster, reason)
		},
	}
}

func (v AcceptCluster) check() error {
	switch {
	case v.Cluster == "":
		return errors.New("--cluster is missing: relay doctor shows its id")
	case len(v.Cluster) > 200:
		return errors.New("--cluster is no cluster's id: relay doctor shows it")
	}
	return nil
}

// PauseTopic holds a topic's events instead of publishing them.
type PauseTopic struct {
	Topic string `line:"" shown:"(required)" help:"Which topic."`
}

// Verb implements Of.
func (v PauseTopic) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "topics pause",
		Title:   "Pause topic " + v.Topic,
		Help: `The relays hold the topic's events, in order, and publish the other topics. Requests that are under way still complete.
The events stay in the database until relay topics resume.`,
		OnlyTopic: v.Topic,
		Refusal:   checkTopic(v.Topic),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			known, err := o.KnowsTopic(ctx, v.Topic)
			if err != nil {
				return Done{}, err
			}
			text := fmt.Sprintf("Topic %s is paused: relays hold its events, in order, until it is resumed.", v.Topic)
			if !known {
				text += " This outbox has never published to it, and no event that is next is for it: is that its name?"
			}
			return Done{text, map[string]any{"topic": v.Topic, "known": known}}, o.PauseTopic(ctx, v.Topic, reason)
		},
	}
}

// ResumeTopic publishes the held events of a paused topic, and what follows.
type ResumeTopic struct {
	Topic string `line:"" shown:"(required)" help:"Which topic."`
}

// Verb implements Of.
func (v ResumeTopic) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command:   "topics resume",
		Title:     "Resume topic " + v.Topic,
		OnlyTopic: v.Topic,
		Refusal:   checkTopic(v.Topic),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			return Done{
				fmt.Sprintf("Topic %s goes on: relays publish what was held, and then what came later.", v.Topic),
				map[string]any{"topic": v.Topic},
			}, o.ResumeTopic(ctx, v.Topic, reason)
		},
	}
}

// DiscardHeld deletes held events of a topic for good.
type DiscardHeld struct {
	Topic     string `line:"" shown:"(required)" help:"Which topic."`
	MessageID string `line:"" name:"message-id" help:"Only the event with this id (ce_id)."`
	All       bool   `line:"" help:"All that is held for the topic."`
}

func (v DiscardHeld) id() (id uuid.UUID, err error) { return MessageID(v.MessageID) }

// MessageID parses the value of --message-id. The zero id means any event.
func MessageID(text string) (id uuid.UUID, err error) {
	if text == "" {
		return id, nil
	}
	if id, err = uuid.Parse(text); err != nil || id == uuid.Nil {
		return id, errors.New("--message-id: want a UUID")
	}
	return id, nil
}

// Verb implements Of.
func (v DiscardHeld) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "topics discard",
		Title:   "Discard held events of " + v.Topic,
		Help: `Held events are published by themselves once their partition or topic accepts them. Discard those that never can be: the topic no longer
exists, or one event (--message-id) blocks a partition. Later events are then published without it.`,
		OnlyTopic: v.Topic,
		Refusal:   v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			id, err := v.id()
			if err != nil {
				return Done{}, err
			}
			var all admin.DiscardResult
			for {
				some, err := o.DiscardHeld(ctx, v.Topic, id, reason)
				switch {
				case err != nil && all.Events == 0:
					return Done{}, err
				case err != nil && !errors.Is(err, operator.ErrNotHeld):
					return Done{}, &PartlyError{gone(all), err}
				}
				all.Events, all.MaybePublished = all.Events+some.Events, all.MaybePublished+some.MaybePublished
				if some.Events < operator.DiscardHeldMost {
					return gone(all), nil
				}
			}
		},
	}
}

func (v DiscardHeld) check() error {
	if v.Topic == "" || v.All == (v.MessageID != "") {
		return errors.New("name what is meant: --topic, and --message-id or --all")
	}
	if _, err := v.id(); err != nil {
		return err
	}
	return checkTopic(v.Topic)
}

// gone says what a discard has done.
func gone(d admin.DiscardResult) Done {
	verb := " are"
	if d.Events == 1 {
		verb = " is"
	}
	return Done{Plural(d.Events, "event") + verb + " given up for good." + MaybePublished(d.MaybePublished), d}
}

// MaybePublished says how many discarded events may still appear in Kafka.
func MaybePublished(events int64) string {
	if events == 0 {
		return ""
	}
	return fmt.Sprintf(" An attempt to send %d of them may have reached Kafka: each may still appear once, late and "+
		"out of its order.", events)
}

// CancelScheduled deletes a scheduled event for good.
type CancelScheduled struct {
	Seq int64  `line:"" default:"0" shown:"(required)" help:"Which event, as the list names it."`
	Due string `line:"" shown:"(required)" help:"When it is due, as the list shows it."`
}

func (v CancelScheduled) due() (time.Time, error) {
	due, err := time.Parse(time.RFC3339, v.Due)
	if err != nil {
		err = errors.New("--due wants the time that relay scheduled list shows, such as 2026-01-02T15:04:05.678Z")
	}
	return due, err
}

// Verb implements Of.
func (v CancelScheduled) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "scheduled cancel",
		Title:   fmt.Sprintf("Cancel scheduled event %d", v.Seq),
		Refusal: v.check(),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			due, err := v.due()
			if err != nil {
				return Done{}, err
			}
			return Done{
				fmt.Sprintf("Event %d will not be published.", v.Seq), map[string]any{"seq": v.Seq, "due": due},
			}, o.CancelScheduled(ctx, v.Seq, due, reason)
		},
	}
}

func (v CancelScheduled) check() error {
	if v.Seq <= 0 {
		return errors.New("--seq is missing: relay scheduled list shows it")
	}
	_, err := v.due()
	return err
}

// CancelAllScheduled deletes all scheduled events of a topic for good, or only a key's or a tenant's.
type CancelAllScheduled struct {
	Topic  string  `line:"" shown:"(required)" help:"Which topic."`
	Key    *string `line:"" shown:"(any)" help:"Only of this key."`
	Tenant *string `line:"" shown:"(any)" help:"Only of this tenant."`
}

// Verb implements Of.
func (v CancelAllScheduled) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "scheduled cancel-all",
		Title:   "Cancel what is scheduled for " + v.Topic,
		Help: `What is scheduled for the topic is deleted for good, whenever it is due, in transactions of at most
10,000 events, each with its row in the audit. An empty --key means the events without a key, an empty --tenant those without a
tenant. If it is broken off, run it again.`,
		Refusal: checkTopic(v.Topic),
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			for all := int64(0); ; {
				some, more, err := o.CancelAllScheduled(ctx, v.Topic, v.Key, v.Tenant, reason)
				switch {
				case err != nil && all == 0:
					return Done{}, err
				case err != nil && !errors.Is(err, operator.ErrNotScheduled):
					return Done{}, &PartlyError{cancelled(all), err}
				}
				if all += some; err != nil || !more {
					return cancelled(all), nil
				}
			}
		},
	}
}

// cancelled says how many events were cancelled.
func cancelled(events int64) Done {
	return Done{Plural(events, "event") + " will not be published.", map[string]any{"events": events}}
}

// Fence begins a new numbering, after the database was restored from a backup.
type Fence struct{}

// Verb implements Of.
func (Fence) Verb() Verb[*operator.Operator] {
	return Verb[*operator.Operator]{
		Command: "fence",
		Title:   "Begin a new numbering",
		Help: `Run it after the outbox's database was restored from a backup, before the relays start; docs/restore.md has all of it. What
was published since the backup has numbers that the restored database would give out again. This begins a new numbering, takes
the lanes from their owners, and advances the sequence of ids if it lags behind its table.`,
		Do: func(ctx context.Context, o *operator.Operator, reason string) (Done, error) {
			f, err := o.Fence(ctx, reason)
			text := fmt.Sprintf("A new numbering has begun: %s (before: %s). Every lane is free; running relays take "+
				"them again.\n", f.Epoch, f.Before)
			if f.Forwarded {
				text += fmt.Sprintf("The sequence of ids lagged behind its table, at %d, and was advanced to %d.\n",
					f.LastID, f.KnownID)
			}
			return Done{text + fmt.Sprintf(
				`%d events wait, %d of them were being published. After a restore many of them are in Kafka already: they are published again
with the same ids. Workers with an inbox drop the repeats, and nothing is to be done. Consumers without deduplication see them
twice. Consumers in watermark mode halt at the first event of the new numbering until an operator accepts it for them (relay
inbox accept), because they cannot tell repeated events from new ones.`, f.Waiting, f.Claimed), f}, err
		},
	}
}
