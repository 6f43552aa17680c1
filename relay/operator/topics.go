package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Topic is what an outbox knows of a topic.
type Topic struct {
	Topic string `json:"topic"`
	// Partitions is the pinned count: keys are spread over as many, whatever the topic has now. 0: never published to.
	Partitions int        `json:"partitions"`
	PinnedAt   *time.Time `json:"pinned_at"`
	PausedAt   *time.Time `json:"paused_at"` // nil: it is not paused
	PausedBy   string     `json:"paused_by"`
	Reason     string     `json:"reason"` // why it is paused
	Held       int64      `json:"held"`   // events that are set aside for it
}

// ErrUncertain: a partition count cannot be accepted while it is not known of some events of the topic whether they
// were written, and where: sent again, they might go to another partition than the first time.
var ErrUncertain = errors.New("some of its events may have been written and are to be sent again; try again in a " +
	"moment, and if it stays so, --anyway accepts that these may appear twice, in two partitions")

// ErrLeftPaused: an acceptance was interrupted, and the topic is paused until AcceptPartitions is called again.
var ErrLeftPaused = errors.New("the topic is paused until this is run again")

// ErrNoTopic: the outbox knows no such topic.
var ErrNoTopic = errors.New("the outbox has no such topic, or has not paused it: list the topics")

// Topics lists the topics that the outbox has published to, has paused, or holds events of.
func (o *Operator) Topics(ctx context.Context) ([]Topic, error) {
	return audit.List(ctx, o.person, "listing the topics", pgx.RowToStructByPos[Topic], o.q(sql.ListTopics))
}

// KnowsTopic reports whether the outbox has published to a topic, has paused it, holds events of it, or has some among
// its next ones: the first hundred of each lane, and the first thousand that are scheduled.
func (o *Operator) KnowsTopic(ctx context.Context, topic string) (knows bool, err error) {
	if err = o.db.QueryRow(ctx, o.q(sql.KnowsTopic), topic).Scan(&knows); err != nil {
		err = fmt.Errorf("relay: looking for topic %s: %w", topic, err)
	}
	return knows, err
}

// PauseTopic makes the relays set a topic's events aside, in order, instead of publishing them; other topics go on.
// What is being sent at this moment is still sent. It lasts until ResumeTopic. A topic that is paused already stays so,
// with its first reason. A topic that the outbox does not know yet may be paused too: see [Operator.KnowsTopic].
func (o *Operator) PauseTopic(ctx context.Context, topic, reason string) error {
	return o.act(ctx, audit.PauseTopic, reason, func(tx pgx.Tx) (audited, error) {
		_, err := tx.Exec(ctx, o.q(sql.Pause), topic, o.person.Name, reason)
		if pgerr.Is(err, pgerr.CheckViolation) {
			err = fmt.Errorf("%q cannot be a topic: want the name of one, of letters, digits, '.', '_' and '-'", topic)
		}
		return audited{topic: topic}, err
	})
}

// ResumeTopic ends a pause: the relays publish the held events, and then later ones. It fails with ErrNoTopic.
func (o *Operator) ResumeTopic(ctx context.Context, topic, reason string) error {
	return o.act(ctx, audit.ResumeTopic, reason, func(tx pgx.Tx) (audited, error) {
		tag, err := tx.Exec(ctx, o.q(sql.Resume), topic)
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("topic %s: %w", topic, ErrNoTopic)
		}
		return audited{topic: topic}, err
	})
}

// AcceptCluster pins the outbox to another Kafka cluster, by the id that its brokers report, which the relays refuse
// until then. Partition counts stay pinned. Let every consumer read the old topics to their ends first: events that
// only they have are not published again, and events in flight may be in both clusters. Relays notice within seconds.
func (o *Operator) AcceptCluster(ctx context.Context, cluster, reason string) error {
	if cluster == "" {
		return errors.New("relay: accept cluster: name the cluster by its id, as relays and `relay doctor` show it")
	}
	return o.act(ctx, audit.AcceptCluster, reason, func(tx pgx.Tx) (audited, error) {
		var before string
		err := tx.QueryRow(ctx, o.q(sql.AcceptCluster), cluster).Scan(&before)
		return audited{detail: map[string]any{"before": before, "cluster": cluster}}, err
	})
}

// AcceptPartitions pins a topic to another partition count, which the relays refuse until then. From then on keys go to
// other partitions than their earlier events: let every consumer read the topic to its end first, or it may apply a
// key's next event before the ones that it has not read.
//
// It fails with ErrUncertain while events of the topic are in the journal, or held after an attempt that may have
// written them or later ones of their lane. With anyway it accepts in spite of that, and such an event may then be in
// the log twice, in two partitions. Held events are published first, in their order, whichever partition they were held
// for. A new incarnation of the numbering begins then, because in its new partition an event may have a lower number
// than earlier ones: consumers in watermark mode then stop and ask, instead of dropping it. A new incarnation also
// begins while a relay reads the WAL, because after a crash it reads its last events again. A consumer in watermark
// mode that reads the topic for the first time cannot notice the change: it applies an event that is in two partitions
// twice.
//
// If more than 2,000 events are held for the topic's partitions, it pauses the topic first and moves them in parts, so
// that the relays do not wait for it. If it is interrupted meanwhile, it fails with ErrLeftPaused: call it again.
//
// It fails with ErrNoTopic for a topic that was never published to: its first count needs no acceptance. Relays notice
// within 30 s.
func (o *Operator) AcceptPartitions(ctx context.Context, topic string, partitions int, anyway bool,
	reason string,
) error {
	if partitions < 1 {
		return fmt.Errorf("relay: accept partitions: %d of topic %s: want at least 1", partitions, topic)
	}
	var journalled, held int64
	var streamed bool
	if err := o.db.QueryRow(ctx, o.q(sql.Uncertain), topic).Scan(&journalled, &held, &streamed); err != nil {
		return fmt.Errorf("relay: accept partitions: counting what is held: %w", err)
	}
	detail := map[string]any{"partitions": partitions, "journalled": journalled, "held": held, "anyway": anyway}
	for regrouped := false; ; regrouped = true {
		err := o.act(ctx, audit.AcceptPartitions, reason, func(tx pgx.Tx) (audited, error) {
			return audited{topic: topic, detail: detail}, o.accept(ctx, tx, topic, partitions, anyway, detail)
		})
		if errors.Is(err, errTooManyHeld) {
			if err = o.regroup(ctx, topic); err == nil {
				continue
			}
			regrouped = true
		}
		if err != nil && regrouped {
			err = fmt.Errorf("relay: accept partitions: topic %s: %w: %w", topic, ErrLeftPaused, err)
		}
		return err
	}
}

// regroupMost is how many held events are moved at a time: the relays wait for the lane meanwhile, or in the last step
// for all lanes.
const regroupMost = 2_000

// lanes is how many lanes an outbox has: relay.Lanes.
const lanes = 32

// errTooManyHeld: more events are held for the topic's partitions than one step may move.
var errTooManyHeld = errors.New("too much is held to be moved at once")

// regrouping is the reason of the topic's pause meanwhile.
const regrouping = "its partition count is being accepted"

// accept is AcceptPartitions for a topic with few held events in its partitions.
func (o *Operator) accept(
	ctx context.Context, tx pgx.Tx, topic string, partitions int, anyway bool, detail map[string]any,
) error {
	if _, err := tx.Exec(ctx, o.q(sql.LockTimeout), lockTimeout); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, o.q(sql.LockLanes)); err != nil {
		return fmt.Errorf("locking the lanes: %w", err)
	}
	var unsure, streamed bool
	var held int
	if err := tx.QueryRow(ctx, o.q(sql.Unsure), topic, regroupMost+1).Scan(&unsure, &streamed, &held); err != nil {
		return err
	}
	if unsure && !anyway {
		return fmt.Errorf("topic %s: %d events are being published and %d are held: %w",
			topic, detail["journalled"], detail["held"], ErrUncertain)
	}
	var before int
	err := tx.QueryRow(ctx, o.q(sql.Accept), topic, partitions).Scan(&before)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("topic %s: %w", topic, ErrNoTopic)
	}
	if err == nil && held > regroupMost {
		err = errTooManyHeld
	}
	if err != nil {
		return err
	}
	detail["before"] = before
	if _, err := tx.Exec(ctx, o.q(sql.Regroup), topic); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, o.q(sql.ResumeRegrouped), topic, regrouping); err != nil {
		return err
	}
	if unsure || streamed {
		var epoch string
		err = tx.QueryRow(ctx, o.q(sql.NewIncarnation)).Scan(&epoch)
		detail["epoch"] = epoch
	}
	return err
}

// regroup moves the events that are held for the partitions of a topic to the topic as a whole, in parts and lane by
// lane. The topic is paused until the count is accepted: otherwise a relay would hold events for its partitions again.
func (o *Operator) regroup(ctx context.Context, topic string) error {
	err := o.act(ctx, audit.PauseTopic, regrouping, func(tx pgx.Tx) (audited, error) {
		_, err := tx.Exec(ctx, o.q(sql.Pause), topic, o.person.Name, regrouping)
		return audited{topic: topic}, err
	})
	for lane := int16(0); lane < lanes && err == nil; {
		var moved int64
		err = o.person.Begin(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, o.q(sql.LockLane), lane); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, o.q(sql.Refence), lane, topic); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, o.q(sql.RegroupLane), lane, topic, regroupMost)
			moved = tag.RowsAffected()
			return err
		})
		if moved < regroupMost {
			lane++
		}
	}
	return err
}
