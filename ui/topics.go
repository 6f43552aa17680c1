package ui

import (
	"context"
	"net/http"
	"regexp"

	"github.com/effectonce/effectonce/relay/operator"
)

type topicsPage struct{ Lists []topicsList }

// topicsList is the list of one outbox.
type topicsList struct {
	DB       string
	Away     string
	Topics   []topic
	ReadOnly bool
}

type topic struct {
	operator.Topic
	Pause, Resume string // commands
}

func topics(q *request) error {
	var p topicsPage
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		switch {
		case why != "":
			p.Lists = append(p.Lists, topicsList{DB: d.Name, Away: why})
			continue
		case st.Outbox == nil:
			continue
		}
		one := topicsList{DB: d.Name, ReadOnly: !st.MayChange}
		found, _ := d.topics.get(q.Context(), q.h.cfg.Timeout)
		if found.Err != nil {
			one.Away = away(found.Err)
		}
		for _, t := range found.List {
			if !q.who.Scope.whole(t.Topic) {
				continue
			}
			one.Topics = append(one.Topics, topic{
				t, d.withReason("topics", "pause", "--topic", t.Topic),
				d.withReason("topics", "resume", "--topic", t.Topic),
			})
		}
		p.Lists = append(p.Lists, one)
	}
	return q.render("topics", http.StatusOK, view{Title: "Topics", Nav: "topics", Live: true, Body: p})
}

// topicName is Kafka's rule for names.
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func pauseTopic(q *request) error {
	return q.changeTopic("pause", (*operator.Operator).PauseTopic,
		"is paused: relays set its events aside, in order, until somebody resumes it.")
}

func resumeTopic(q *request) error {
	return q.changeTopic("resume", (*operator.Operator).ResumeTopic,
		"goes on: relays publish what was set aside, and then what came later.")
}

func (q *request) changeTopic(name string,
	do func(o *operator.Operator, ctx context.Context, topic, reason string) error, done string,
) error {
	topic, err := q.topicForm()
	if err != nil {
		return err
	}
	return q.change(verb{
		name: titles[name] + " topic " + topic, command: []string{"topics", name, "--topic", topic},
		back: q.h.path("topics"),
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.outbox(q.who.Name)
			if err != nil {
				return "", err
			}
			return "Topic " + topic + " " + done, do(o, ctx, topic, reason)
		},
	})
}
