package proof

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/relay/operator"
)

// parkedFor is how long an event is parked before the operator looks at it.
const parkedFor = 300 * time.Millisecond

// runOperator lets go what is parked, on both sides, and now and then pauses the topic, replays, and begins a new
// numbering. Often the first release of a parked event changes nothing, so that it is refused, or fails, once more.
func runOperator(ctx context.Context, s *stage) error {
	sending, err := operator.New(s.db, "", "operator")
	if err != nil {
		return err
	}
	receiving, err := inboxoperator.New(s.db, "", consumerName, "operator")
	if err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		// What is gone, or being released, by now is nobody's fault; nor is what a fault interrupts: the next turn
		// looks again.
		err := errors.Join(releaseParked(ctx, s, sending), releaseFailed(ctx, s, receiving), cancel(ctx, sending),
			visit(ctx, sending, receiving, s.topic, n))
		if err != nil {
			fmt.Println("operator:", err)
		}
		select {
		case <-ctx.Done():
			// Whatever happens, a topic is not left paused.
			if err := sending.ResumeTopic(context.WithoutCancel(ctx), s.topic, "the end"); !errors.Is(err,
				operator.ErrNoTopic) {
				return err
			}
			return nil
		case <-tick.C:
		}
	}
}

// releaseParked releases the events of the outbox that the broker has refused. The second time they are small enough.
func releaseParked(ctx context.Context, s *stage, o *operator.Operator) error {
	list, err := o.Parked(ctx, operator.ParkedFilter{OlderThan: parkedFor})
	for _, e := range list {
		if e.Releasing || e.Attempts == 0 {
			continue
		}
		kind, read := kindOf(ctx, s, e.MessageID)
		switch {
		case read != nil:
			return errors.Join(err, read)
		case kind == kindDiscard && e.Alone:
			_, discarded := o.DiscardEvent(ctx, e.ID, "nobody wants it")
			err = errors.Join(err, discarded)
			continue
		case kind == kindDiscard:
			_, discarded := o.DiscardKey(ctx, e.Tenant, e.Topic, e.Key, "nobody wants it")
			err = errors.Join(err, discarded)
			continue
		}
		if e.Attempts > 1 {
			small := []byte("{}")
			err = errors.Join(err, o.EditParked(ctx, e.ID, operator.Edit{Payload: &small}, "it is too large"))
		}
		if e.Alone {
			err = errors.Join(err, o.ReleaseEvent(ctx, e.ID, "again"))
		} else {
			_, released := o.ReleaseKey(ctx, e.Tenant, e.Topic, e.Key, "again")
			err = errors.Join(err, released)
		}
	}
	return err
}

// releaseFailed releases the events of the inbox that failed or are quarantined. The effect succeeds the second time at
// the latest.
func releaseFailed(ctx context.Context, s *stage, o *inboxoperator.Operator) error {
	list, err := o.Parked(ctx, inboxoperator.ParkedFilter{OlderThan: parkedFor})
	for _, e := range list {
		if e.Releasing || e.Kind == "behind" {
			continue
		}
		kind, read := kindOf(ctx, s, e.MessageID)
		switch {
		case read != nil:
			return errors.Join(err, read)
		case kind == kindDrop && e.Alone:
			_, discarded := o.DiscardEvent(ctx, e.ID, "nobody wants it")
			err = errors.Join(err, discarded)
			continue
		case kind == kindDrop:
			_, discarded := o.DiscardKey(ctx, e.Tenant, e.Topic, e.Key, "nobody wants it")
			err = errors.Join(err, discarded)
			continue
		}
		if (e.Kind == "quarantined" || e.Code == inbox.CodeMaybePublished) && os.Getenv(envDedup) == byWatermark {
			done, judged := applied(ctx, s, e.MessageID)
			if judged == nil && done {
				_, judged = o.DiscardEvent(ctx, e.ID, "it was applied")
			}
			if judged != nil {
				return errors.Join(err, judged) // releasing the key would say that it was looked at
			}
			if done {
				continue
			}
		}
		if e.Attempts > 1 || allowedAtOnce(e.MessageID) {
			_, allowed := s.db.Exec(ctx, `insert into allowed values ($1) on conflict do nothing`, e.MessageID)
			err = errors.Join(err, allowed)
		}
		if e.Alone {
			err = errors.Join(err, o.ReleaseEvent(ctx, e.ID, "again"))
		} else {
			_, released := o.ReleaseKey(ctx, e.Tenant, e.Topic, e.Key, "again")
			err = errors.Join(err, released)
		}
	}
	return err
}

// cancel takes away what was scheduled for it.
func cancel(ctx context.Context, o *operator.Operator) error {
	list, err := o.Scheduled(ctx, operator.ScheduledFilter{})
	for _, e := range list {
		if time.Until(e.Due) > time.Minute {
			err = errors.Join(err, o.CancelScheduled(ctx, e.Seq, "nobody wants it"))
		}
	}
	return err
}

func kindOf(ctx context.Context, s *stage, id uuid.UUID) (kind string, err error) {
	err = s.db.QueryRow(ctx, `select kind from paid where id = $1`, id).Scan(&kind)
	return kind, err
}

// allowedAtOnce: what the effect has refused works at its first release already.
func allowedAtOnce(id uuid.UUID) bool { return id[15]%2 == 0 }

// applied looks whether an event had its effect, or will have none.
func applied(ctx context.Context, s *stage, id uuid.UUID) (done bool, err error) {
	err = s.db.QueryRow(ctx,
		`select exists (select from effect where id = $1) or exists (select from paid where id = $1 and kind = 'skip')`,
		id).Scan(&done)
	return done, err
}

// visit does the rarer things.
func visit(ctx context.Context, o *operator.Operator, in *inboxoperator.Operator, topic string, n int) error {
	byNumber := os.Getenv(envDedup) == byWatermark
	switch n % 20 {
	case 2:
		return o.PauseTopic(ctx, topic, "a drill")
	case 0, 4: // at the start, too: an operator may have died in between
		if err := o.ResumeTopic(ctx, topic, "the end of the drill"); !errors.Is(err, operator.ErrNoTopic) {
			return err
		}
	case 8:
		_, err := o.Replay(ctx, operator.Replay{From: time.Now().Add(-time.Second), Topic: topic}, "a drill")
		return err
	case 10:
		if byNumber {
			return nil
		}
		const query = `select message_id, topic, key, type, payload, headers, content_type from outbox_archive
			where topic = '%s' order by pos desc limit 10`
		_, err := o.Replay(ctx, operator.Replay{Query: fmt.Sprintf(query, topic)}, "a drill")
		return err
	case 12:
		// A consumer that goes by numbers would have what is claimed at this moment twice.
		if byNumber || n%100 != 12 {
			return nil
		}
		_, err := o.Fence(ctx, "a drill")
		return err
	case 16:
		for partition := range int32(4) {
			if err := in.Resume(ctx, topic, partition, "a drill"); err != nil &&
				!errors.Is(err, inboxoperator.ErrNotHalted) {
				return err
			}
		}
	}
	return nil
}
