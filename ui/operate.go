package ui

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// operate lists the routes of the verbs whose forms hold nothing but their flags.
func operate(add func(path string, serve func(*request) error)) {
	outbox := func(q *request) (*operator.Operator, []string, error) {
		o, err := q.db.Outbox(q.who.Name)
		return o, nil, err
	}
	inbox := func(q *request) (*inboxoperator.Operator, []string, error) {
		consumer := q.PostForm.Get("consumer")
		o, err := q.db.Inbox(consumer, q.who.Name)
		if consumer == "" {
			err = errForm
		}
		return o, []string{"--consumer=" + consumer}, err
	}
	keys := func(q *request) (*keysoperator.Operator, []string, error) {
		o, err := q.db.Idempotency(q.who.Name)
		return o, nil, err
	}
	findings := func(q *request) (doctor.Acknowledger, []string, error) {
		o, err := doctor.NewAcknowledger(q.db.Pool, q.db.Schema, q.who.Name)
		return o, nil, err
	}
	topicPage := func(q *request) string { return q.h.path("topic", q.db.Name, q.PostForm.Get("topic")) }
	to := func(page string) func(*request) string {
		return func(q *request) string { return q.h.path(reads.Page) }
	}
	add(serving[verbs.Acknowledge](findings, func(q *request) string { return q.h.path() }, nil))
	add(serving[verbs.PauseTopic](outbox, to("topics"), nil))
	add(serving[verbs.ResumeTopic](outbox, to("topics"), nil))
	add(serving[verbs.AcceptPartitions](outbox, topicPage, nil))
	add(serving[verbs.AcceptCluster](outbox, to("topics"), nil))
	add(serving[verbs.DiscardHeld](outbox, topicPage, nil))
	add(serving[verbs.CancelScheduled](outbox, to("scheduled"), nil))
	add(serving[verbs.CancelAllScheduled](outbox, to("scheduled"), nil))
	add(serving[verbs.ResumePartition](inbox, to("consumers"), nil))
	add(serving(inbox, to("consumers"), withinLog))
	add(serving[verbs.AcceptNumbering](inbox, to("consumers"), nil))
	add(serving[verbs.MoveConsumer](inbox, to("consumers"), nil))
	add(serving[verbs.ForgetOffsets](inbox, to("consumers"), nil))
	add(serving[verbs.Retire](inbox, to("consumers"), nil))
	add(serving[verbs.RetryOperation](keys, to("idempotency"), nil))
	add(serving(keys, to("idempotency"), withBody))
	add(serving[verbs.FreeOperation](keys, to("idempotency"), nil))
}

// serving returns the path of a verb, and serves it: open returns its operator, and the flags that name that; back is
// the page to continue on; prepare, unless nil, changes or refuses what the form says.
func serving[V verbs.Of[O], O any](open func(*request) (O, []string, error), back func(*request) string,
	prepare func(*request, *V) error,
) (path string, serve func(*request) error) {
	var none V
	return "/db/{db}/" + strings.ReplaceAll(none.Verb().Command, " ", "/"), func(q *request) error {
		if _, err := q.reason(); err != nil {
			return err
		}
		var args V
		if verbs.Read(&args, q.PostForm) != nil {
			return errForm
		}
		if prepare != nil {
			if err := prepare(q, &args); err != nil {
				return err
			}
		}
		v := args.Verb()
		switch {
		case v.Refusal != nil:
			return &refusal{
				http.StatusUnprocessableEntity, "This cannot be done", "Nothing was changed. " + v.Refusal.Error(),
			}
		case !q.who.Scope.whole(v.OnlyTopic):
			return notFound("No topic of yours has this name.")
		}
		o, names, err := open(q)
		if err != nil {
			return err
		}
		return q.change(verb{
			name: v.Title, command: reads.ArgsOf(args, names...), back: back(q),
			do: func(ctx context.Context, reason string) (string, error) {
				done, err := v.Do(ctx, o, reason)
				return done.Text, err
			},
		})
	}
}

// withinLog refuses an offset beyond the end of the log, as far as that is known.
func withinLog(q *request, v *verbs.SkipRecords) error {
	v.Brokers = q.db.Brokers()
	m, _ := q.movementOf(q.db)
	if end, known := m.Ends[reads.Partition{Topic: v.Topic, Partition: v.Partition}]; known && v.To > end {
		return &refusal{
			http.StatusUnprocessableEntity, fmt.Sprintf("The log ends at offset %d", end), "Nothing was changed.",
		}
	}
	return nil
}

// withBody has the answer in the form, and a file in the command.
func withBody(_ *request, v *verbs.CompleteOperation) error {
	if v.Body != "" {
		v.Answer, v.Body = []byte(v.Body), "answer.json"
	}
	return nil
}
