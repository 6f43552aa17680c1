package ui

import (
	"fmt"
	"net/http"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// step is a stage of an event's way: outbox, relay, Kafka, consumer.
type step struct {
	Name, Count, Unit string
	Why               string    // why nothing moves here, or a note
	Last              time.Time // when something last moved here; zero: unknown
	Severity          string
	First             bool // the first stage where nothing moves
	Href, Do          string
}

type chainPage struct{ Chains []chainOf }

// chainOf is the chain of one database.
type chainOf struct {
	Name  string
	Away  string
	Steps []step
}

func chain(q *request) error {
	var p chainPage
	for _, d := range q.h.databases {
		p.Chains = append(p.Chains, q.chainOf(d))
	}
	return q.render("chain", http.StatusOK, view{Title: "Chain", Nav: "chain", Live: true, Body: p})
}

// ends returns the doctor's look at Kafka, and why there is none: ends that are old would make each lag too small.
func (q *request) ends(d *reads.Database) (x reads.Examination, why string) {
	x, _, err := d.Findings.Get(q.Context(), 0)
	switch {
	case err != nil:
		return reads.Examination{}, reads.Away(err)
	case x.EndsErr != nil:
		return x, "Kafka says: " + x.EndsErr.Error()
	}
	return x, ""
}

func (q *request) chainOf(d *reads.Database) chainOf {
	c := chainOf{Name: d.Name}
	st, _, why := q.stateOf(d)
	if c.Away = why; why != "" {
		return c
	}
	if st.Outbox != nil {
		c.Steps = append(c.Steps, q.h.outboxSteps(d, st)...)
	}
	x, why := q.ends(d)
	c.Steps = append(c.Steps, q.h.kafkaStep(st, x, why))
	for _, one := range st.Inbox {
		c.Steps = append(c.Steps, q.h.effects(d, one, x))
	}
	for i := range c.Steps {
		if c.Steps[i].Severity == bad {
			c.Steps[i].First = true
			break
		}
	}
	return c
}

func (h *Handler) outboxSteps(d *reads.Database, st reads.State) []step {
	s := st.Outbox
	outbox := step{Name: "Outbox", Count: count(s.Backlog), Unit: "events wait", Severity: well, Last: d.LastOut()}
	switch {
	case s.Backlog > 0 && s.Members == 0:
		outbox.Severity, outbox.Why = bad, "No relay is alive: start one with relay run."
	case s.Backlog > 0 && s.Oldest > wrong:
		outbox.Severity = bad
		outbox.Why = fmt.Sprintf("%s, and the oldest event waits for %s: the relays' logs say what they cannot do.",
			alive(s.Members), format.Dur(s.Oldest))
	case s.Backlog > 0:
		outbox.Why = fmt.Sprintf("The oldest waits for %s.", format.Dur(s.Oldest))
	default:
		outbox.Why = alive(s.Members) + "."
	}
	held := step{
		Name: "Held", Count: count(s.Held), Unit: "events wait", Severity: well, Href: h.path("topics"), Do: "Topics",
	}
	switch {
	case s.PausedTopics > 0:
		held.Severity = bad
		held.Why = fmt.Sprintf("%s paused by a person, the first %s ago.", format.Plural(s.PausedTopics, "topic"),
			format.Dur(s.PausedFor))
	case s.HeldPartitions > 0:
		held.Severity = bad
		held.Why = fmt.Sprintf("%s do not take events, the first for %s. They go on by themselves.",
			format.Plural(s.HeldPartitions, "partition"), format.Dur(s.HeldFor))
	}
	parked := step{
		Name: "Refused", Count: count(s.Parked), Unit: "events wait", Severity: well, Href: h.path("keys"),
		Do: "Blocked keys",
	}
	if s.Parked > 0 {
		parked.Severity = bad
		parked.Why = fmt.Sprintf("Kafka refused an event for certain; %s wait for a person, %d are on their way out.",
			format.Plural(s.ParkedKeys, "key"), s.Releasing)
	}
	return []step{outbox, held, parked}
}

func alive(relays int) string {
	if relays == 1 {
		return "1 relay is alive"
	}
	return fmt.Sprintf("%d relays are alive", relays)
}

func (h *Handler) kafkaStep(st reads.State, x reads.Examination, why string) step {
	s := step{Name: "Kafka", Count: "–", Severity: well}
	switch {
	case h.cfg.Kafka == nil:
		s.Why = "Not asked: this page knows no brokers."
	case x.EndsErr != nil:
		s.Severity, s.Why = bad, "It does not answer as it should: "+x.EndsErr.Error()
	case why != "":
		s.Why = "Not known: " + why
	case len(st.Inbox) == 0:
		s.Why = "No consumer of this database says which topics it reads."
	default:
		var records int64
		for _, end := range x.Ends {
			records += max(end, 0)
		}
		s.Count, s.Unit = format.Num(records), "records written"
		s.Why = fmt.Sprintf("In %s that consumers here read.", format.Plural(int64(len(x.Ends)), "partition"))
	}
	return s
}

func (h *Handler) effects(d *reads.Database, c inboxoperator.ConsumerDiagnosis, x reads.Examination) step {
	s := step{
		Name: "Effects of " + c.Consumer, Count: "–", Severity: well, Href: h.path("consumers"), Do: "Consumers",
	}
	var lag int64
	halted, known := 0, len(x.Ends) > 0
	stands := time.Duration(0)
	for _, p := range c.Partitions {
		if p.EffectAt != nil && p.EffectAt.After(s.Last) {
			s.Last = *p.EffectAt
		}
		if p.HaltedAt != nil {
			halted++
		}
		if end, ok := x.Ends[reads.Partition{Topic: p.Topic, Partition: p.Partition}]; ok && end > p.From {
			lag += end - p.From
			stands = max(stands, p.Unmoved)
		}
	}
	if known {
		s.Count, s.Unit = format.Num(lag), "records wait"
	}
	switch {
	case halted > 0:
		s.Severity = bad
		s.Why = format.Plural(int64(halted), "partition") + " halted: a person must decide."
	case lag > 0 && stands > wrong:
		s.Severity = bad
		s.Why = fmt.Sprintf("Nothing was decided for %s: its workers' logs say why.", format.Dur(stands))
	case c.Parked+c.Quarantined > 0:
		s.Severity = look
		s.Why = fmt.Sprintf("%s failed, %s in quarantine.", format.Plural(c.Parked, "event"), format.Num(c.Quarantined))
		s.Href = h.path("db", d.Name, reads.InInbox, "events") + format.QueryString("consumer", c.Consumer)
		s.Do = "Parked events"
	}
	return s
}
