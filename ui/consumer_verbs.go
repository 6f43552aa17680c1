package ui

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
)

// changeConsumer changes the consumer that a form names. name is the command after `relay inbox`.
func (q *request) changeConsumer(title, name string, flags []string,
	do func(ctx context.Context, o *inboxoperator.Operator, reason string) (done string, err error),
) error {
	consumer := q.PostForm.Get("consumer")
	if consumer == "" {
		return errForm
	}
	return q.change(verb{
		name: title, back: q.h.path("consumers"),
		command: append([]string{"inbox", name, "--consumer", consumer}, flags...),
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.inbox(consumer, q.who.Name)
			if err != nil {
				return "", err
			}
			return do(ctx, o, reason)
		},
	})
}

// partitionForm reads the partition of a form.
type partitionForm struct {
	consumer, topic string
	partition       int32
}

func (q *request) partitionForm() (f partitionForm, err error) {
	if _, err := q.reason(); err != nil {
		return f, err
	}
	f.consumer, f.topic = q.PostForm.Get("consumer"), q.PostForm.Get("topic")
	n, err := strconv.ParseInt(q.PostForm.Get("partition"), 10, 32)
	if err != nil || n < 0 || f.consumer == "" || f.topic == "" {
		return f, errForm
	}
	f.partition = int32(n)
	return f, nil
}

func (f partitionForm) String() string { return fmt.Sprintf("%s/%d", f.topic, f.partition) }

func (f partitionForm) flags(more ...string) []string {
	return append([]string{"--topic", f.topic, "--partition", strconv.Itoa(int(f.partition))}, more...)
}

func resumePartition(q *request) error {
	at, err := q.partitionForm()
	if err != nil {
		return err
	}
	return q.changeConsumer("Resume "+at.String(), "resume", at.flags(),
		func(ctx context.Context, o *inboxoperator.Operator, reason string) (string, error) {
			return fmt.Sprintf("Partition %v goes on within seconds, where it stands.", at),
				o.Resume(ctx, at.topic, at.partition, reason)
		})
}

func skipRecords(q *request) error {
	at, err := q.partitionForm()
	if err != nil {
		return err
	}
	to, err := strconv.ParseInt(q.PostForm.Get("to"), 10, 64)
	if err != nil || to < 0 {
		return &refusal{http.StatusUnprocessableEntity, "This is no offset", "Nothing was changed."}
	}
	x, _ := q.db.findings.get(q.Context(), 0)
	if end, known := x.Ends[place{at.topic, at.partition}]; known && to > end {
		return &refusal{
			http.StatusUnprocessableEntity, fmt.Sprintf("The log ends at offset %d", end), "Nothing was changed.",
		}
	}
	return q.changeConsumer("Skip records of "+at.String(), "skip", at.flags("--to", strconv.FormatInt(to, 10)),
		func(ctx context.Context, o *inboxoperator.Operator, reason string) (string, error) {
			from, err := o.SkipTo(ctx, at.topic, at.partition, to, reason)
			return fmt.Sprintf("Consumer %s goes on at offset %d of %v, after %d: the effects between do not run. Set "+
				"its group to offset %d as well, before its workers start.", shown(at.consumer), to, at, from, to), err
		})
}

func acceptNumbering(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	epoch := q.PostForm.Get("epoch")
	return q.changeConsumer("Accept numbering "+shown(epoch), "accept", []string{"--epoch", epoch},
		func(ctx context.Context, o *inboxoperator.Operator, reason string) (string, error) {
			n, err := o.AcceptNumbering(ctx, epoch, reason)
			return fmt.Sprintf("Numbering %s is accepted. %d halted partitions go on within seconds.", epoch,
				n), err
		})
}

func moveConsumer(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	to, err := inboxoperator.MoveTo(q.PostForm.Get("to"))
	if err != nil {
		return errForm
	}
	consumer := q.PostForm.Get("consumer")
	return q.changeConsumer("Move consumer "+shown(consumer), "move", []string{"--to", to.String()},
		func(ctx context.Context, o *inboxoperator.Operator, reason string) (string, error) {
			until, err := o.Move(ctx, to, reason)
			return fmt.Sprintf("Consumer %s goes by %v. Start its workers with that setting; until %s they look at "+
				"ids as well.", shown(consumer), to, until.UTC().Format(time.DateOnly)), err
		})
}

func forgetOffsets(q *request) error {
	topic, err := q.topicForm()
	if err != nil {
		return err
	}
	return q.changeConsumer("Forget the offsets of "+topic, "forget-offsets", []string{"--topic", topic},
		func(ctx context.Context, o *inboxoperator.Operator, reason string) (string, error) {
			n, err := o.ForgetOffsets(ctx, topic, reason)
			return fmt.Sprintf("The offsets of %s are forgotten. %d halted partitions go on within seconds.",
				topic, n), err
		})
}

func retireConsumer(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	consumer := q.PostForm.Get("consumer")
	return q.changeConsumer("Retire consumer "+shown(consumer), "retire", nil,
		func(ctx context.Context, o *inboxoperator.Operator, reason string) (string, error) {
			return fmt.Sprintf("Consumer %s is retired. Days are kept for the windows of the others.", shown(consumer)),
				o.Retire(ctx, reason)
		})
}

// setGroup returns Kafka's command that sets a stopped group to an offset.
func setGroup(c consumer, topic string, partition int32, to int64) string {
	group := ""
	if len(c.Programs) == 1 {
		group = c.Programs[0].Group
	}
	return inboxoperator.SetGroup(group, topic, partition, to)
}
