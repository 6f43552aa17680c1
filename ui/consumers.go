package ui

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
)

type consumersPage struct{ Lists []consumersList }

// consumersList are the consumers of one inbox.
type consumersList struct {
	DB        string
	Away      string
	Kafka     string // why some ends are not known
	Consumers []consumerView
	ReadOnly  bool
}

type consumerView struct {
	consumer
	Partitions []partitionView
}

// Days is the window.
func (c consumerView) Days() int { return int(c.Window / (24 * time.Hour)) }

type partitionView struct {
	inboxoperator.PartitionState
	End, Lag int64 // -1: not known
	Severity string
	Resume   string // command
}

func consumers(q *request) error {
	var p consumersPage
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		switch {
		case why != "":
			p.Lists = append(p.Lists, consumersList{DB: d.Name, Away: why})
			continue
		case !st.HasInbox:
			continue
		}
		x, _ := d.findings.get(q.Context(), 0)
		one := consumersList{DB: d.Name, ReadOnly: !st.MayChange}
		if x.EndsErr != nil {
			one.Kafka = x.EndsErr.Error()
		}
		for _, c := range st.Inbox {
			one.Consumers = append(one.Consumers, consumerView{c, d.partitions(c, x)})
		}
		p.Lists = append(p.Lists, one)
	}
	return q.render("consumers", http.StatusOK, view{Title: "Consumers", Nav: "consumers", Live: true, Body: p})
}

func (d *database) partitions(c consumer, x examination) (list []partitionView) {
	for _, p := range c.Partitions {
		v := partitionView{PartitionState: p, End: -1, Lag: -1, Resume: d.withReason("inbox", "resume", "--consumer",
			c.Consumer, "--topic", p.Topic, "--partition", fmt.Sprint(p.Partition))}
		if end, ok := x.Ends[place{p.Topic, p.Partition}]; ok {
			v.End, v.Lag = end, max(end-p.From, 0)
		}
		switch {
		case p.HaltedAt != nil:
			v.Severity = bad
		case p.TryingAt != nil, v.Lag > 0 && p.Unmoved > wrong:
			v.Severity = look
		}
		list = append(list, v)
	}
	return list
}

func resumePartition(q *request) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	consumer, topic := q.PostForm.Get("consumer"), q.PostForm.Get("topic")
	partition, err := strconv.ParseInt(q.PostForm.Get("partition"), 10, 32)
	if err != nil || consumer == "" || topic == "" {
		return errForm
	}
	return q.change(verb{
		name: fmt.Sprintf("Resume %s/%d", topic, partition), back: q.h.path("consumers"),
		command: []string{
			"inbox", "resume", "--consumer", consumer, "--topic", topic, "--partition", fmt.Sprint(partition),
		},
		do: func(ctx context.Context, reason string) (string, error) {
			o, err := q.db.inbox(consumer, q.who.Name)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("Partition %s/%d goes on within seconds, where it stands.", topic, partition),
				o.Resume(ctx, topic, int32(partition), reason)
		},
	})
}
