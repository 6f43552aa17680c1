package ui

import (
	"net/http"

	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
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
		found, _, err := d.Topics.Get(q.Context(), q.h.cfg.Timeout)
		if err != nil {
			one.Away = reads.Away(err)
		}
		for _, t := range found {
			if !q.who.Scope.whole(t.Topic) {
				continue
			}
			one.Topics = append(one.Topics, topic{
				t, reads.CommandOf(d, verbs.PauseTopic{Topic: t.Topic}),
				reads.CommandOf(d, verbs.ResumeTopic{Topic: t.Topic}),
			})
		}
		p.Lists = append(p.Lists, one)
	}
	return q.render("topics", http.StatusOK, view{Title: "Topics", Nav: "topics", Live: true, Body: p})
}
