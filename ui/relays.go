package ui

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

type relaysPage struct{ Lists []relaysList }

// relaysList lists the relays and workers of one database.
type relaysList struct {
	DB, Address string
	Away        string
	Outbox      bool
	Cluster     string
	Relays      []relayView
	LastOut     time.Time // when events last left the outbox, as far as the pages have seen it
	WAL         *relay.WALStatus
	Wrong       []finding // the doctor's findings about relays
	Unsure      string    // why these are not known
	Command     string
	Inbox       bool
	Workers     []workerView
}

type relayView struct{ operator.RelayStatus }

// Numbers returns the relay's lanes, as in 0-3,7.
func (r relayView) Numbers() string {
	var parts []string
	for i := 0; i < len(r.Lanes); {
		j := i
		for j+1 < len(r.Lanes) && r.Lanes[j+1] == r.Lanes[j]+1 {
			j++
		}
		part := strconv.Itoa(int(r.Lanes[i]))
		if j > i {
			part += "-" + strconv.Itoa(int(r.Lanes[j]))
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ",")
}

// State returns a severity and the state in a word.
func (r relayView) State() [2]string {
	switch {
	case r.Owner == nil:
		return [2]string{look, "free"}
	case !r.Alive:
		return [2]string{bad, "silent"}
	case r.Trouble != "":
		return [2]string{look, "something fails"}
	case r.Well < time.Second: // less than any heartbeat takes
		return [2]string{look, "not well"}
	case r.Overdue > 0:
		return [2]string{look, "overdue"}
	}
	return [2]string{well, "works"}
}

// workerView is a program that runs a consumer, or a consumer without one.
type workerView struct {
	Consumer, Program, Version, Host, Group string
	Heard                                   time.Time // zero: unknown
	Started                                 time.Time // when a worker of the consumer last started
	Partitions, Halted                      int
	EffectAt                                *time.Time
	Trouble                                 []trouble
}

// trouble is why a partition has stopped.
type trouble struct {
	Topic     string
	Partition int32
	Since     time.Time
	Halted    bool
	Error     string
}

// aboutRelays are the doctor's checks of relays.
var aboutRelays = []string{"leases", "held", "paused", "parked", "scheduled", "kafka", "slot"}

func relays(q *request) error {
	var p relaysPage
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		one := relaysList{DB: d.Name, Address: d.Address(), Away: why, Command: d.Command("status")}
		if why == "" && st.Outbox != nil {
			q.fillRelays(&one, d)
		}
		if one.Inbox = st.HasInbox; one.Inbox {
			for _, c := range st.Inbox {
				one.Workers = append(one.Workers, workersOf(c)...)
			}
		}
		p.Lists = append(p.Lists, one)
	}
	return q.render("relays", http.StatusOK, view{Title: "Relays and workers", Nav: "relays", Live: true, Body: p})
}

func (q *request) fillRelays(one *relaysList, d *reads.Database) {
	st, _, _ := q.stateOf(d)
	m, _ := q.movementOf(d)
	one.Outbox, one.LastOut, one.WAL = true, m.LastOut, st.Outbox.WAL
	read, _, err := d.Relays.Get(q.Context(), q.h.cfg.Timeout)
	if err != nil {
		one.Away = reads.Away(err)
		return
	}
	one.Cluster = read.Cluster
	for _, r := range read.List {
		one.Relays = append(one.Relays, relayView{r})
	}
	x, _, err := d.Findings.Get(q.Context(), 0)
	if err != nil {
		one.Unsure = reads.Away(err)
	}
	for _, f := range x.Findings {
		if f.Severity != doctor.OK && f.Severity != doctor.Skip && slices.Contains(aboutRelays, f.Check) {
			one.Wrong = append(one.Wrong, q.h.guided(d, f))
		}
	}
}

func workersOf(c inboxoperator.ConsumerDiagnosis) (list []workerView) {
	one := workerView{Consumer: c.Consumer, Started: c.SeenAt, Partitions: len(c.Partitions)}
	for _, p := range c.Partitions {
		if p.EffectAt != nil && (one.EffectAt == nil || p.EffectAt.After(*one.EffectAt)) {
			one.EffectAt = p.EffectAt
		}
		t := trouble{Topic: p.Topic, Partition: p.Partition}
		switch {
		case p.HaltedAt != nil:
			one.Halted++
			t.Halted, t.Since, t.Error = true, *p.HaltedAt, strings.TrimSpace(p.Code+" "+p.Error)
		case p.TryingAt != nil:
			t.Since, t.Error = *p.TryingAt, p.Trying
		default:
			continue
		}
		one.Trouble = append(one.Trouble, t)
	}
	for _, p := range c.Programs {
		of := one
		of.Program, of.Version, of.Host, of.Group, of.Heard = p.Name, p.Version, p.Host, p.Group, p.Seen
		list = append(list, of)
	}
	if len(list) == 0 {
		list = append(list, one)
	}
	return list
}
