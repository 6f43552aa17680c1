package proof

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/relay/operator"
)

// parkedFor is how long an event is parked before the operator looks at it.
const parkedFor = 300 * time.Millisecond

// runOperator releases parked events of the outbox and the inbox; at times it pauses the topic, replays, and starts a
// new numbering. The first release of a parked event often changes nothing, so that it is refused or fails again.
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
		// Errors are expected: the event may be released by now, or a fault interrupt the command. The next turn
		// tries again.
		err := errors.Join(releaseParked(ctx, s, sending), releaseFailed(ctx, s, receiving), cancel(ctx, sending),
			visit(ctx, sending, receiving, s.topic, n))
		if err != nil {
			fmt.Println("operator:", err)
		}
		select {
		case <-ctx.Done():
			// Do not leave the topic paused.
			if err := sending.ResumeTopic(context.WithoutCancel(ctx), s.topic, "the end"); !errors.Is(err,
				operator.ErrNoTopic) {
				return err
			}
			return nil
		case <-tick.C:
		}
	}
}

// releaseParked releases the events that the broker refused. The second time they are small enough.
func releaseParked(ctx context.Context, s *stage, o *operator.Operator) error {
	list, err := o.Parked(ctx, admin.ParkedFilter{OlderThan: parkedFor})
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
			_, discarded := o.DiscardKey(ctx, e.Tenant, e.Topic, e.Key, admin.Seen{}, "nobody wants it")
			err = errors.Join(err, discarded)
			continue
		}
		if e.Attempts > 1 {
			small := []byte("{}")
			err = errors.Join(err, o.EditParked(ctx, e.ID, admin.Edit{Payload: &small}, "it is too large"))
		}
		if e.Alone {
			err = errors.Join(err, o.ReleaseEvent(ctx, e.ID, "again"))
		} else {
			_, released := o.ReleaseKey(ctx, e.Tenant, e.Topic, e.Key, admin.Seen{}, "again")
			err = errors.Join(err, released)
		}
	}
	return err
}

// releaseFailed releases the events that failed in the inbox or are quarantined. The effect succeeds at the second
// release at the latest.
func releaseFailed(ctx context.Context, s *stage, o *inboxoperator.Operator) error {
	list, err := o.Parked(ctx, admin.ParkedFilter{OlderThan: parkedFor})
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
			_, discarded := o.DiscardKey(ctx, e.Tenant, e.Topic, e.Key, admin.Seen{}, "nobody wants it")
			err = errors.Join(err, discarded)
			continue
		}
		if (e.Kind == "quarantined" || e.Code == inbox.CodeMaybePublished) && os.Getenv(envDedup) == byWatermark {
			done, judged := applied(ctx, s, e.MessageID)
			if judged == nil && done {
				_, judged = o.DiscardEvent(ctx, e.ID, "it was applied")
			}
			if judged != nil {
				return errors.Join(err, judged) // unchecked, so its key must not be released
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
			_, released := o.ReleaseKey(ctx, e.Tenant, e.Topic, e.Key, admin.Seen{}, "again")
			err = errors.Join(err, released)
		}
	}
	return err
}

// cancel cancels the events of kindCancel.
func cancel(ctx context.Context, o *operator.Operator) error {
	list, err := o.Scheduled(ctx, operator.ScheduledFilter{})
	for _, e := range list {
		if time.Until(e.Due) > time.Minute {
			err = errors.Join(err, o.CancelScheduled(ctx, e.Seq, e.Due, "nobody wants it"))
		}
	}
	return err
}

func kindOf(ctx context.Context, s *stage, id uuid.UUID) (kind string, err error) {
	err = s.db.QueryRow(ctx, `select kind from paid where id = $1`, id).Scan(&kind)
	return kind, err
}

// allowedAtOnce reports whether a refused effect succeeds at the first release.
func allowedAtOnce(id uuid.UUID) bool { return id[15]%2 == 0 }

// applied reports whether an event had its effect, or will have none.
func applied(ctx context.Context, s *stage, id uuid.UUID) (done bool, err error) {
	err = s.db.QueryRow(ctx,
		`select exists (select from effect where id = $1) or exists (select from paid where id = $1 and kind = 'skip')`,
		id).Scan(&done)
	return done, err
}

// visit runs the rarer commands.
func visit(ctx context.Context, o *operator.Operator, in *inboxoperator.Operator, topic string, n int) error {
	byNumber := os.Getenv(envDedup) == byWatermark
	switch n % 20 {
	case 2:
		return o.PauseTopic(ctx, topic, "a drill")
	case 0, 4: // at the start too: the last operator may have been killed in between
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
		// By watermark, events that are claimed at this moment would have two effects.
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
