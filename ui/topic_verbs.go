package ui

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/relay/operator"
)

// topicForm reads the topic of a form.
func (q *request) topicForm() (topic string, err error) {
	if _, err := q.reason(); err != nil {
		return "", err
	}
	if topic = q.PostForm.Get("topic"); !topicName.MatchString(topic) {
		return "", &refusal{http.StatusUnprocessableEntity, "This is no topic's name", "Nothing was changed."}
	}
	if !q.who.Scope.whole(topic) {
		return "", notFound("No topic of yours has this name.")
	}
	return topic, nil
}

func acceptPartitions(q *request) error {
	topic, err := q.topicForm()
	if err != nil {
		return err
	}
	count, err := strconv.ParseInt(q.PostForm.Get("partitions"), 10, 32)
	if err != nil || count < 1 {
		return &refusal{
			http.StatusUnprocessableEntity, "This is no partition count", "Nothing was changed. Want at least 1.",
		}
	}
	anyway := q.PostForm.Get("anyway") != ""
	command := []string{"topics", "accept", "--topic", topic, "--partitions", strconv.FormatInt(count, 10)}
	if anyway {
		command = append(command, "--anyway")
	}
	return q.change(verb{
		name: "Accept partitions of " + topic, command: command, back: q.h.path("topic", q.db.Name, topic),
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.outbox(q.who.Name)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("Topic %s is pinned to %d partitions. Relays go on within 30 s.", topic, count),
				o.AcceptPartitions(ctx, topic, int(count), anyway, reason)
		},
	})
}

func acceptCluster(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	cluster := q.PostForm.Get("cluster")
	if cluster == "" || len(cluster) > 200 {
		return &refusal{
			http.StatusUnprocessableEntity, "This is no cluster's id",
			"Nothing was changed. Relays and the doctor show the id.",
		}
	}
	return q.change(verb{
		name: "Accept cluster " + shown(cluster), command: []string{"topics", "accept-cluster", "--cluster", cluster},
		back: q.h.path("topics"),
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.outbox(q.who.Name)
			if err != nil {
				return "", err
			}
			return "The outbox is pinned to Kafka cluster " + shown(cluster) + ". Relays go on within seconds.",
				o.AcceptCluster(ctx, cluster, reason)
		},
	})
}

func discardHeld(q *request) error {
	topic, err := q.topicForm()
	if err != nil {
		return err
	}
	var id uuid.UUID
	command := []string{"topics", "discard", "--topic", topic, "--all"}
	if text := q.PostForm.Get("id"); text != "" {
		if id, err = uuid.Parse(text); err != nil || id == uuid.Nil {
			return errForm
		}
		command = []string{"topics", "discard", "--topic", topic, "--message-id", id.String()}
	} else if q.PostForm.Get("all") == "" {
		return errForm
	}
	return q.change(verb{
		name: "Discard what is held of " + topic, command: command, back: q.h.path("topic", q.db.Name, topic),
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.outbox(q.who.Name)
			if err != nil {
				return "", err
			}
			gone, err := o.DiscardHeld(ctx, topic, id, reason)
			done := plural(gone.Events, "event") + " given up for good." + mayAppear(gone)
			if gone.Events >= operator.DiscardHeldMost {
				done += " More may be held: the same again gives up the next."
			}
			return done, err
		},
	})
}
