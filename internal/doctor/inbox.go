package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
)

func (f *findings) inbox(d inboxoperator.Diagnosis) {
	if len(d.MissingRights) > 0 {
		f.add(Fail, "inbox grants", "the role lacks "+few(d.MissingRights),
			"A worker that connects as this role does not work.",
			grant("effectonce_inbox"))
		f.run("migrate", "--roles", "--print")
		return
	}
	f.ok("inbox grants", "all that a worker needs, beside maintenance")
	f.identity("inbox identity", d.ByStart, "After each restart of the server workers leave their group once, and "+
		"look where "+
		"their database is.")
	f.days(d)
	if len(d.Pending) > 0 {
		f.maintain(Warn, "an interrupted detach: "+strings.Join(d.Pending, ", "),
			"No other day can be detached before it is finished.")
	}
	for _, c := range d.Consumers {
		f.consumer(c)
	}
}

// maintain adds a finding whose remedy is maintenance.
func (f *findings) maintain(severity Severity, found, means string) {
	f.add(severity, "inbox days", found, means, "Run this as the tables' owner; then put it into cron, or set "+
		"inbox.Config.MaintenanceDB.")
	f.run("inbox", "maintain")
}

// days examines the daily partitions, which are created ahead of their days.
func (f *findings) days(d inboxoperator.Diagnosis) {
	switch {
	case len(d.Consumers) == 0:
		f.ok("inbox days", "no consumer has started yet")
	case !slices.ContainsFunc(d.Consumers, func(c inboxoperator.ConsumerDiagnosis) bool {
		return c.Dedup == inbox.ByID.String()
	}):
		f.ok("inbox days", "no consumer goes by ids")
	case d.Altered != "":
		f.add(Fail, "inbox days", strings.TrimPrefix(d.Altered, "inbox: "), "Without its ids nobody can tell whether "+
			"events of a day were applied: they wait.",
			"Find out what does that, and stop it. Then do what is said above; maintenance does not.")
	case len(d.Missing) > 0:
		f.maintain(Fail, fmt.Sprintf("%d days inside the window have no partition, the first is %s", len(d.Missing),
			d.Missing[0]), "Events whose ids are of these days wait.")
	case d.DaysAhead < 2:
		f.maintain(Fail, fmt.Sprintf("%d days ahead", max(d.DaysAhead, 0)),
			"When they are used up consumers stop. Seven are made ahead: maintenance does not run.")
	case d.DaysAhead < 5:
		f.maintain(Warn, fmt.Sprintf("%d days ahead", d.DaysAhead), "Seven are made ahead: maintenance has not run "+
			"for days.")
	default:
		f.ok("inbox days", "%d ahead, none missing", d.DaysAhead)
	}
}

// lost names what Kafka had no longer when the consumer came to it.
func (f *findings) lost(check string, c inboxoperator.ConsumerDiagnosis) {
	var lost, perhaps []string
	for _, p := range c.Partitions {
		where := fmt.Sprintf("%s/%d at %s", p.Topic, p.Partition, p.Lost)
		switch {
		case p.Lost == "":
		case strings.Contains(p.Lost, ", if any, are gone"):
			perhaps = append(perhaps, where)
		default:
			lost = append(lost, where)
		}
	}
	const next = "`relay replay` publishes again what the archive has; otherwise correct the business tables. Then " +
		"acknowledge this."
	if len(lost) > 0 {
		f.add(Warn, check, "records are lost: "+some(lost, len(c.Partitions)), "Kafka had them no longer when the "+
			"consumer came to them: their effects are missing. This is said for seven days.", next)
	}
	if len(perhaps) > 0 {
		f.add(Warn, check, "records may be lost: "+some(perhaps, len(c.Partitions)), "How many records the old log "+
			"had behind what was decided is not known. If the consumer had read it to its end, none is missing. "+
			"This is said for seven days.", "Compare the business tables with what was published. "+next)
	}
}

// parksMany is how many events, parked within two minutes, are more than a few bad ones.
const parksMany = 10

func (f *findings) consumer(c inboxoperator.ConsumerDiagnosis) {
	check := "consumer " + c.Consumer
	f.halts(check, c)
	for _, p := range c.Partitions {
		if p.Unaccounted != 0 {
			f.add(Fail, check, fmt.Sprintf("%s/%d: %d offsets are not accounted for", p.Topic, p.Partition,
				p.Unaccounted), "The consumer has passed them, and they are neither those of decided events nor "+
				"without a record: effects may be missing.",
				"Look for what leaves events out, such as a wrapper of the Handler. Otherwise it is a bug: report it.")
		}
	}
	f.lost(check, c)
	if len(c.Programs) > 1 {
		names := make([]string, len(c.Programs))
		for i, p := range c.Programs {
			names[i] = p.Name + " (on " + p.Host + ")"
		}
		f.add(Warn, check, "run by several programs: "+strings.Join(names, ", "), "They take events from each other: "+
			"each seems to lose some. While one takes the other's place, that is as it should be.",
			"Give one of them another consumer name, or both the same inbox.Config.Program when they are one")
	}
	if len(c.Programs) > 0 && c.Beside != "" {
		f.add(Warn, check, "it is new, and has read nothing; the same program runs "+c.Beside, "Of a topic that both "+
			"read it begins nothing until consumer.Config.Start is set: is the name a typo? Under a new name every "+
			"event is applied again.", "A typo: correct the name, and retire this one. Another consumer: set "+
			"consumer.Config.Start to StartEarliest or StartLatest.")
		f.runWhy("inbox", "retire", "--consumer="+c.Consumer)
		return
	}
	if len(c.Programs) > 0 && len(c.Partitions) == 0 && time.Since(c.StartedAt) > waitsLong {
		f.add(Warn, check, "its program runs, and has never had a partition", "It consumes nothing: its topics are "+
			"misspelt or missing, or it does not reach Kafka.", "Look at the worker's log, and at its "+
			"/healthz/moving.")
		return
	}
	if c.RetiredAt != nil {
		f.add(Warn, check, fmt.Sprintf("retired %v ago, and its partitions move", time.Since(*c.RetiredAt).
			Round(time.Second)), "A worker goes on, and its window no longer keeps days: repeats of events whose days "+
			"are dropped are quarantined.", "Stop its workers; or restart one, which ends the retirement.")
	}
	f.releases(check, c)
	if p := c.Parks; p.Events >= parksMany && p.Events > p.Effects {
		f.add(Fail, check, fmt.Sprintf("most of its last events are parked, %d in two minutes: %s x %d", p.Events,
			p.Code, p.OfCode), "The cause is more likely a deployment or changed data than the events. Their effects "+
			"are missing.", "Roll the deployment back, or mend what the code names; then release them.")
		f.run("inbox", "parked", "list", "--consumer="+c.Consumer)
		return
	}
	if c.Parked+c.Quarantined+c.ParkedKeys > 0 {
		means := "Effects that failed for good, and what waits behind them."
		if c.Quarantined > 0 {
			means += " Of quarantined events nobody can tell whether they were applied: too old, of a clock that is " +
				"wrong, of no number that decides, or under the id of another event (other_content)."
		}
		f.add(Warn, check, fmt.Sprintf("%d events parked, %d keys, %d quarantined", c.Parked, c.ParkedKeys,
			c.Quarantined), means, "See why, mend it, and then release or discard them.")
		f.run("inbox", "parked", "list", "--consumer="+c.Consumer)
		return
	}
	f.ok(check, "nothing parked, goes by %s, window %d days", c.Dedup, int(c.Window.Hours()/24))
}

// releases examines what operators have released, and no worker has applied yet.
func (f *findings) releases(check string, c inboxoperator.ConsumerDiagnosis) {
	if c.Releasing == 0 {
		return
	}
	silent := c.ReportedAt == nil || time.Since(*c.ReportedAt) > gone
	again := restarts(c)
	switch {
	case again != "":
		f.add(Warn, check, fmt.Sprintf("%s, and %d released keys or events wait", again, c.Releasing), "An effect "+
			"that ends its process does so when it is released, too: it is parked again after "+
			"inbox.Config.CrashAttempts (10) such runs.", "The exit code and the last lines say why. Discard the "+
			"event, or correct the effect.")
	case silent:
		f.add(Warn, check, fmt.Sprintf("%d released keys or events wait for a worker", c.Releasing), "No program of "+
			"the consumer has reported for "+gone.String()+", and only its workers run what is released.",
			"Start its workers; they call Inbox.Run, and have the effect of the topic.")
	case c.ReleasingFor > waitsLong:
		f.add(Warn, check, fmt.Sprintf("%d released keys or events are not applied yet, one since %v", c.Releasing,
			c.ReleasingFor.Round(time.Second)), "A worker applies the events of a key one at a time: the list is "+
			"long, or an effect is slow, or hangs.", "The list gets shorter meanwhile, or see what its worker's "+
			"session does (the finding \"idle in transaction\"), and its log.")
	default:
		return
	}
	f.run("inbox", "parked", "keys", "--consumer="+c.Consumer)
}

// halts names what holds partitions, once for all that say the same, and which of them wait for a person.
func (f *findings) halts(check string, c inboxoperator.ConsumerDiagnosis) {
	type cause struct{ code, why string }
	first, at := map[cause]inboxoperator.PartitionState{}, map[cause][]string{}
	var causes []cause // in the order of the partitions
	for _, p := range c.Partitions {
		if p.HaltedAt == nil {
			continue
		}
		why := cause{p.Code, p.Error}
		if at[why] == nil {
			causes, first[why] = append(causes, why), p
		}
		at[why] = append(at[why], fmt.Sprintf("%s/%d (at %d)", p.Topic, p.Partition, p.From))
	}
	const means = "Nothing after this event is applied in these partitions."
	for _, why := range causes {
		where := some(at[why], len(c.Partitions))
		switch why.code {
		case inbox.CodeRejected:
			f.add(Fail, check, fmt.Sprintf("the database rejects it: %s: %s; tried again by itself "+
				"every few seconds", why.why, where), means, "Mend what it says: a missing migration, a grant. It "+
				"goes on by itself then.")
			f.run("inbox", "consumers", "--consumer="+c.Consumer)
		case inbox.CodeListFull:
			f.add(Fail, check, "halted: "+why.why+": "+where, means, "Release or discard what is parked. It goes on "+
				"by itself then.")
			f.run("inbox", "parked", "keys", "--consumer="+c.Consumer)
		default:
			next := "Mend that; then resume it."
			if len(at[why]) > 1 {
				next = "Mend that; then resume each. This resumes the first."
			}
			f.add(Fail, check, fmt.Sprintf("halted: %s: %s: %s", why.code, why.why, where), means, next)
			f.runWhy("inbox", "resume", "--consumer="+c.Consumer, "--topic="+first[why].Topic,
				"--partition="+fmt.Sprint(first[why].Partition))
		}
	}
}

// shortest returns the shortest window of the consumers that deduplicate by id; 0: none do.
func shortest(d inboxoperator.Diagnosis) (window time.Duration) {
	for _, c := range d.Consumers {
		if c.Dedup == inbox.ByID.String() && (window == 0 || c.Window < window) {
			window = c.Window
		}
	}
	return window
}
