package ui

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
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
	inboxoperator.ConsumerDiagnosis
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
	State    string // in a word or two
	Resume   string // commands
	Skip     string
	SetGroup string
}

// SkipTo returns the offset after the record at which the partition has stopped.
func (p partitionView) SkipTo() int64 { return p.From + 1 }

// Kills reports whether the next event ends the process of each worker, as far as is known.
func (p partitionView) Kills() bool { return p.Attempts > 1 }

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
		m, ends := q.movementOf(d)
		if ends == "" && m.EndsErr != nil {
			ends = "Kafka says: " + m.EndsErr.Error()
		}
		one := consumersList{DB: d.Name, ReadOnly: !st.MayChange, Kafka: ends}
		x, _, _ := d.Findings.Get(q.Context(), 0)
		for _, f := range x.Findings {
			if f.Check == "inbox days" && (one.Days == nil || one.Days.Severity == doctor.OK) {
				days := q.h.guided(d, f)
				one.Days = &days
			}
		}
		for _, c := range st.Inbox {
			one.Consumers = append(one.Consumers, consumerViewOf(d, c, m.Ends))
		}
		p.Lists = append(p.Lists, one)
	}
	return q.render("consumers", http.StatusOK, view{Title: "Consumers", Nav: "consumers", Live: true, Body: p})
}

// newNumbering finds the numbering in the error of a halt.
var newNumbering = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+`)

func consumerViewOf(d *reads.Database, c inboxoperator.ConsumerDiagnosis, ends map[reads.Partition]int64) consumerView {
	v := consumerView{ConsumerDiagnosis: c, Partitions: partitionsIn(d, c, ends)}
	for _, p := range c.Partitions {
		if !slices.Contains(v.Topics, p.Topic) {
			v.Topics = append(v.Topics, p.Topic)
		}
		if p.Code == "new_numbering" && v.Numbering == "" {
			v.Numbering = newNumbering.FindString(p.Error)
		}
	}
	v.Retire, v.Move = commandFor(d, c, verbs.Retire{}), commandFor(d, c, verbs.MoveConsumer{To: "..."})
	v.Accept = commandFor(d, c, verbs.AcceptNumbering{Epoch: cmp.Or(v.Numbering, "...")})
	v.Forget = commandFor(d, c, verbs.ForgetOffsets{Topic: "..."})
	return v
}

// commandFor returns the command of a verb for a consumer.
func commandFor(d *reads.Database, c inboxoperator.ConsumerDiagnosis, v verbs.Of[*inboxoperator.Operator]) string {
	return reads.CommandOf(d, v, "--consumer="+c.Consumer)
}

func partitionsIn(d *reads.Database, c inboxoperator.ConsumerDiagnosis, ends map[reads.Partition]int64) (
	list []partitionView,
) {
	for _, p := range c.Partitions {
		v := partitionView{PartitionState: p, End: -1, Lag: -1}
		at := verbs.OfPartition{Topic: p.Topic, Partition: p.Partition}
		v.Resume = commandFor(d, c, verbs.ResumePartition{OfPartition: at})
		v.Skip = commandFor(d, c, verbs.SkipRecords{OfPartition: at, To: v.SkipTo()})
		v.SetGroup = setGroup(d, c, p.Topic, p.Partition, v.SkipTo())
		if end, ok := ends[reads.Partition{Topic: p.Topic, Partition: p.Partition}]; ok {
			v.End = max(end, p.From) // the end may have been asked for before the progress
			v.Lag = v.End - p.From
		}
		v.State, v.Severity = stateOf(c, v)
		list = append(list, v)
	}
	return list
}

// stateOf says what a partition does, and how bad that is.
func stateOf(c inboxoperator.ConsumerDiagnosis, v partitionView) (state, severity string) {
	waits := v.Lag > 0 && v.Unmoved > stands
	switch {
	case v.HaltedAt != nil && v.Code == "rejected":
		return "rejected, tried again", bad
	case v.HaltedAt != nil:
		return "halted", bad
	case v.Kills():
		return "ends its worker", bad
	case waits && len(c.Programs) == 0:
		return "no worker", bad
	case v.TryingAt != nil:
		return "the effect fails", look
	case waits && v.Batch != nil:
		return "a batch runs", look
	case waits && v.Unmoved > wrong:
		return "stands", bad
	case waits:
		return "stands", look
	case len(c.Programs) == 0:
		return "no worker", look
	case v.Batch == nil && v.Lag <= 0:
		return "idle", ""
	}
	return "runs", ""
}

// setGroup returns Kafka's command that sets a stopped group to an offset.
func setGroup(d *reads.Database, c inboxoperator.ConsumerDiagnosis, topic string, partition int32, to int64) string {
	group := ""
	if len(c.Programs) == 1 {
		group = c.Programs[0].Group
	}
	return doctor.SetGroup(d.Brokers(), group, topic, partition, to)
}
