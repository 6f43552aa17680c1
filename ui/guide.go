package ui

import (
	"regexp"
	"strings"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// Severities, as classes of the stylesheet.
const (
	well    = "ok"
	look    = "warn"
	bad     = "fail"
	unknown = "unknown"
)

// finding is a finding of the doctor, with links.
type finding struct {
	doctor.Finding
	ID       string // of its card
	Know     string // the command that acknowledges it
	Runbook  string // a section of docs/runbooks; empty: none
	Href, Do string // the page with the remedy, and its name
}

// guide says where a finding links to.
type guide struct {
	runbooks, failed, warned string // a page of docs/runbooks, and the alerts that it has sections for
	page, name               string
}

func (g guide) runbook(alert string) string {
	if alert == "" {
		return ""
	}
	return g.runbooks + ".md#effectonce" + strings.ToLower(alert)
}

// guides are by check, or by the first word of a check.
var guides = map[string]guide{
	"leases":                {"relay", "RelayAbsent", "LanesUnowned", "relays", "Relays"},
	"parked":                {"relay", "EventsParked", "EventsParked", "keys", "Blocked keys"},
	"held":                  {"relay", "EventsHeld", "EventsHeld", "topics", "Topics"},
	"paused":                {"relay", "TopicPaused", "TopicPaused", "topics", "Topics"},
	"scheduled":             {"relay", "ScheduledLate", "ScheduledLate", "scheduled", "Scheduled"},
	"kafka":                 {"relay", "RelayOutage", "RelayOutage", "", ""},
	"topic":                 {"relay", "EventsHeld", "", "topics", "Topics"},
	"slot":                  {"relay", "SlotBehind", "SlotUnread", "", ""},
	"inbox days":            {"workers", "InboxDaysShort", "InboxDaysShort", "consumers", "Consumers"},
	"consumer":              {"workers", "PartitionHalted", "InboxParked", "consumers", "Consumers"},
	"progress":              {"workers", "ConsumerStalled", "ConsumerLag", "consumers", "Consumers"},
	"oldest snapshot":       {"relay", "OldSnapshot", "OldSnapshot", "", ""},
	"idempotency keys":      {"idempotency", "", "OperationStuck", "idempotency", "Idempotency keys"},
	"idle in transaction":   {"relay", "OldSnapshot", "OldSnapshot", "", ""},
	"prepared transactions": {"relay", "OldSnapshot", "OldSnapshot", "", ""},
}

func (h *Handler) guided(d *reads.Database, f doctor.Finding) finding {
	g, ok := guides[f.Check]
	if !ok {
		first, _, _ := strings.Cut(f.Check, " ")
		g = guides[first]
	}
	to := finding{Finding: f, ID: cardID(d.Name, f.Check), Runbook: g.runbook(g.warned)}
	if f.Severity == doctor.Warn {
		to.Know = d.WithReason(reads.ArgsOf(verbs.Acknowledge{Check: f.Check, Found: f.Found, Days: 7})...)
	}
	if f.Severity == doctor.Fail {
		to.Runbook = g.runbook(g.failed)
	}
	if g.page != "" {
		to.Href, to.Do = h.path(g.page), g.name
	}
	// The page that has the finding's verb.
	topic, _ := strings.CutPrefix(f.Check, "topic ")
	switch {
	case strings.Contains(f.Command, " topics accept "):
		to.Href, to.Do = h.path("topic", d.Name, topic), "Topic"
	case strings.Contains(f.Command, " topics accept-cluster "):
		to.Href, to.Do = h.path("topics"), "Topics"
	case strings.HasPrefix(f.Found, "most of its last events are parked"):
		to.Href, to.Do = h.path("failures"), "Failures"
	case strings.Contains(f.Command, " inbox parked list ") && !strings.HasPrefix(f.Found, "0 events parked,"):
		to.Href, to.Do = h.path("keys"), "Blocked keys"
	case strings.Contains(f.Next, "`relay replay`"):
		to.Href, to.Do = h.path("archive"), "Archive"
	}
	return to
}

var unlikeID = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// cardID returns the id of a finding's card.
func cardID(db, check string) string {
	return "card-" + db + "-" + unlikeID.ReplaceAllString(check, "-")
}
