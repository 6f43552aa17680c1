package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// step is a stage of an event's way: outbox, Kafka, a consumer's effects; or a place beside it.
type step struct {
	Name     string
	Main     figure
	Facts    []string
	Why      string // why nothing moves here, or a note
	Severity string
	First    bool      // the first one to look at
	Flow     string    // what flows into it
	Moved    string    // what Last is the time of
	Last     time.Time // zero: not known
	Href     string    // its finding, or a page
	Aside    bool
}

// worse sets the severity, unless the step has a worse one.
func (s *step) worse(severity string) {
	if severity != "" && slices.Index(severities, severity) < slices.Index(severities, s.Severity) {
		s.Severity = severity
	}
}

// severities, the worst first.
var severities = []string{bad, unknown, look, well}

// stepsOf returns the steps of a database, in the order of an event's way.
func (h *Handler) stepsOf(d *reads.Database, st reads.State, m reads.Movement, all map[string]figure, why string) (
	list []step,
) {
	if k := st.Keys; k != nil {
		list = append(list, step{
			Name: "Idempotency keys", Severity: well, Href: h.path("idempotency"),
			Main:  figure{Value: count(k.Stuck), Unit: "stuck"},
			Facts: []string{count(k.Unknown) + " unknown: recovery has them"},
		})
		if k.Overdue > 0 {
			list[0].Facts = []string{
				count(k.Unknown) + " unknown", count(k.Overdue) + " overdue: no recovery takes them",
			}
		}
		list[0].worse(over(k.Stuck+k.Overdue, look))
	}
	if st.Outbox != nil {
		list = append(list, h.outboxSteps(st, m, all)...)
	}
	if st.Outbox != nil || st.HasInbox {
		list = append(list, h.kafkaStep(st, m, all, why))
	}
	for _, one := range st.Inbox {
		list = append(list, h.effects(d, one, m, why))
	}
	return list
}

func (h *Handler) outboxSteps(st reads.State, m reads.Movement, all map[string]figure) []step {
	s := st.Outbox
	outbox := step{
		Name: "Outbox", Main: figure{Value: count(s.Backlog), Unit: format.Unit(s.Backlog, "event") + " waiting"},
		Severity: well, Href: h.path("relays"), Flow: flow(m.Now.Of[reads.In], "in"),
	}
	outbox.Facts = []string{fmt.Sprintf("%s, %d of %d lanes", format.Plural(int64(s.Members), "relay"), s.Owned,
		len(s.Lanes))}
	if s.Backlog > 0 {
		outbox.Facts = append(outbox.Facts, "the oldest waits "+format.Dur(s.Oldest))
		outbox.worse(standing(s.Oldest))
		switch {
		case s.Members == 0:
			outbox.Why = "No relay is alive."
			outbox.worse(look)
		case s.Oldest > stands:
			outbox.Why = "Relays are alive, and are late."
		}
	}
	if slot, ok := all["Slot"]; ok {
		outbox.Facts = append(outbox.Facts, strings.TrimSpace("slot "+slot.Value+" "+slot.Unit))
		outbox.worse(slot.Severity)
	}
	held := step{
		Name: "Held", Main: figure{Value: count(s.Held), Unit: format.Unit(s.Held, "event")},
		Severity: well, Href: h.path("topics"), Aside: true,
	}
	if s.HeldPartitions > 0 {
		held.worse(look)
		held.Facts = append(held.Facts, fmt.Sprintf("%s, since %s", format.Plural(s.HeldPartitions, "partition"),
			format.Dur(s.HeldFor)))
	}
	if s.PausedTopics > 0 {
		held.worse(look)
		held.Facts = append(held.Facts, fmt.Sprintf("%s paused, since %s", format.Plural(s.PausedTopics, "topic"),
			format.Dur(s.PausedFor)))
	}
	refused := step{
		Name: "Refused", Main: figure{Value: count(s.Parked), Unit: format.Unit(s.Parked, "event")},
		Severity: well, Href: h.path("keys"), Aside: true,
	}
	if s.Parked > 0 {
		refused.worse(look)
		if s.ParkedKeys > 0 {
			refused.Facts = append(refused.Facts, format.Plural(s.ParkedKeys, "key")+" blocked")
		}
		if s.Releasing > 0 {
			refused.Facts = append(refused.Facts, format.Num(s.Releasing)+" on the way out")
		}
	}
	return []step{outbox, held, refused}
}

func (h *Handler) kafkaStep(st reads.State, m reads.Movement, all map[string]figure, why string) step {
	s := step{Name: "Kafka", Severity: well, Href: h.path("topics"), Last: m.LastOut, Moved: "last record"}
	s.Main = figure{Value: "–"}
	if out, ok := all["Out"]; ok {
		s.Main, s.Flow = figure{Value: out.Value, Unit: "records/s"}, flow(m.Now.Of[reads.Out], "out")
	}
	switch {
	case h.cfg.Kafka == nil && st.HasInbox:
		s.Severity, s.Why = unknown, "Not asked: these pages have no brokers."
	case h.cfg.Kafka == nil:
	case why != "":
		s.Severity, s.Why = unknown, "Not known: "+why
	case m.EndsErr != nil:
		s.Severity, s.Why = unknown, "It does not answer as it should."
	default:
		var records int64
		for _, end := range m.Ends {
			records += end
		}
		if len(m.Ends) > 0 {
			s.Facts = append(s.Facts, fmt.Sprintf("%s in %s", format.Plural(records, "record"),
				format.Plural(int64(len(m.Ends)), "partition")))
		}
	}
	return s
}

func (h *Handler) effects(d *reads.Database, c inboxoperator.ConsumerDiagnosis, m reads.Movement, why string) step {
	f, seen := m.Flows[c.Consumer]
	s := step{
		Name: effectsOf + c.Consumer, Severity: well, Href: h.path("consumers"), Moved: "last effect", Last: f.Last,
		Main: figure{Value: "–", Unit: "waiting: not known"},
	}
	if seen {
		s.Flow = flow(f.Decided, "decided")
	}
	if seen && f.Waiting >= 0 {
		s.Main = figure{Value: format.Num(f.Waiting), Unit: format.Unit(f.Waiting, "record") + " waiting"}
	}
	switch {
	case len(c.Partitions) == 0:
		s.Main = figure{Value: "0", Unit: "partitions so far"}
	case !seen || f.Waiting < 0:
		s.worse(unknown)
	case f.Stands > stands:
		s.worse(standing(f.Stands))
		s.Why = fmt.Sprintf("Nothing is decided in a partition with records, since %s.", format.Dur(f.Stands))
	}
	if why != "" {
		s.worse(unknown)
	}
	if len(c.Programs) == 0 && len(c.Partitions) > 0 {
		s.Facts = append(s.Facts, "no worker runs it")
	}
	halted := int64(0)
	for _, p := range c.Partitions {
		if p.HaltedAt != nil {
			halted++
		}
	}
	if halted > 0 {
		s.worse(bad)
		s.Facts = append(s.Facts, format.Plural(halted, "partition")+" halted")
	}
	for _, set := range []struct {
		n    int64
		what string
	}{{c.Parked, "parked"}, {c.Quarantined, "in quarantine"}} {
		if set.n > 0 {
			s.worse(look)
			s.Facts = append(s.Facts, format.Num(set.n)+" "+set.what)
			s.Href = h.path("db", d.Name, reads.InInbox, "events") + format.QueryString("consumer", c.Consumer)
		}
	}
	return s
}

// flow says what flows into a step; "": not known.
func flow(rate float64, what string) string {
	if rate < 0 {
		return ""
	}
	return format.Rate(rate) + "/s " + what
}

// effectsOf begins the name of a consumer's step.
const effectsOf = "Effects of "

// stages are the steps of the doctor's checks, by the first word. Others are about the server, before all steps.
var stages = map[string]string{
	"idempotency": "Idempotency keys", "leases": "Outbox", "relays": "Outbox", "sequence": "Outbox", "hash": "Outbox",
	"numbering": "Outbox", "identity": "Outbox", "grants": "Outbox", "scheduled": "Outbox", "vacuum": "Outbox",
	"slot": "Outbox", "outbox": "Outbox", "versions": "Outbox", "held": "Held", "paused": "Held", "parked": "Refused",
	"kafka": "Kafka", "topic": "Kafka", "restored": "Kafka",
	"inbox": effectsOf, "consumer": effectsOf, "progress": effectsOf,
}

// stageOf returns the name of a check's step; "": it is about the server.
func stageOf(check string) string {
	first, rest, _ := strings.Cut(check, " ")
	stage := stages[first]
	if stage == effectsOf && first != "inbox" {
		return stage + rest
	}
	return stage
}

// join orders findings as the steps, the worse ones first, and links each step with its first one.
func join(steps []step, wrong []finding) {
	place := func(f finding) int {
		stage := stageOf(f.Check)
		return slices.IndexFunc(steps, func(s step) bool {
			return s.Name == stage || stage == effectsOf && strings.HasPrefix(s.Name, stage)
		})
	}
	slices.SortStableFunc(wrong, func(a, b finding) int {
		if a.Severity != b.Severity {
			return strings.Compare(string(a.Severity), string(b.Severity)) // "fail" before "warn"
		}
		return place(a) - place(b)
	})
	linked, ids := map[int]bool{}, map[string]bool{}
	for i, f := range wrong {
		if ids[f.ID] {
			wrong[i].ID = "" // a check may have several findings
		}
		ids[f.ID] = true
		at := place(f)
		if at < 0 {
			continue
		}
		steps[at].worse(string(f.Severity))
		if !linked[at] {
			linked[at], steps[at].Href = true, "#"+f.ID
		}
	}
	for _, severity := range severities[:len(severities)-1] {
		if at := slices.IndexFunc(steps, func(s step) bool { return s.Severity == severity }); at >= 0 {
			steps[at].First = true
			return
		}
	}
}
