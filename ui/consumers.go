package ui

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
)

type consumersPage struct{ Lists []consumersList }

// consumersList is the list of one inbox.
type consumersList struct {
	DB        string
	Away      string
	Kafka     string // why some ends are not known
	Consumers []consumerView
	ReadOnly  bool
	Days      *finding // the doctor's finding about the daily partitions; nil: none yet
}

type consumerView struct {
	consumer
	Partitions []partitionView
	Topics     []string
	Numbering  string // the new numbering that a partition has halted for
	Retire     string // commands
	Move       string
	Accept     string
	Forget     string
}

// Days returns the window in days.
func (c consumerView) Days() int { return int(c.Window / (24 * time.Hour)) }

type partitionView struct {
	inboxoperator.PartitionState
	End, Lag int64 // -1: not known
	Severity string
	Resume   string // commands
	Skip     string
	SetGroup string
}

// SkipTo returns the offset after the record at which the partition has stopped.
func (p partitionView) SkipTo() int64 { return p.From + 1 }

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
		for _, f := range x.Findings {
			if f.Check == "inbox days" && (one.Days == nil || one.Days.Severity == doctor.OK) {
				days := q.h.guided(d, f)
				one.Days = &days
			}
		}
		for _, c := range st.Inbox {
			one.Consumers = append(one.Consumers, d.consumerView(c, x))
		}
		p.Lists = append(p.Lists, one)
	}
	return q.render("consumers", http.StatusOK, view{Title: "Consumers", Nav: "consumers", Live: true, Body: p})
}

// newNumbering finds the numbering in the error of a halt.
var newNumbering = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+`)

func (d *database) consumerView(c consumer, x examination) consumerView {
	v := consumerView{consumer: c, Partitions: d.partitions(c, x)}
	for _, p := range c.Partitions {
		if !slices.Contains(v.Topics, p.Topic) {
			v.Topics = append(v.Topics, p.Topic)
		}
		if p.Code == "new_numbering" && v.Numbering == "" {
			v.Numbering = newNumbering.FindString(p.Error)
		}
	}
	of := func(verb string, flags ...string) string {
		return d.withReason(append([]string{"inbox", verb, "--consumer", c.Consumer}, flags...)...)
	}
	v.Retire, v.Move = of("retire"), of("move", "--to", "...")
	v.Accept, v.Forget = of("accept", "--epoch", cmp.Or(v.Numbering, "...")), of("forget-offsets", "--topic", "...")
	return v
}

func (d *database) partitions(c consumer, x examination) (list []partitionView) {
	for _, p := range c.Partitions {
		at := []string{"--consumer", c.Consumer, "--topic", p.Topic, "--partition", fmt.Sprint(p.Partition)}
		v := partitionView{PartitionState: p, End: -1, Lag: -1, SetGroup: setGroup(c, p.Topic, p.Partition, p.From+1)}
		v.Resume = d.withReason(append([]string{"inbox", "resume"}, at...)...)
		v.Skip = d.withReason(append(append([]string{"inbox", "skip"}, at...), "--to", fmt.Sprint(v.SkipTo()))...)
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
