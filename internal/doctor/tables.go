package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/relay/operator"
)

// waitsLong is the age at which waiting events are a failure: a relay takes milliseconds.
const waitsLong = time.Minute

// deadRows is the number at which vacuum is late: the table's own settings begin at 20,000.
const deadRows = 500_000

func (f *findings) outbox(d operator.Diagnosis) {
	if len(d.MissingRights) > 0 {
		f.add(Fail, "grants", "the role lacks "+few(d.MissingRights), "A relay that connects as this "+
			"role does not work.",
			grant("effectonce_relay"))
		f.run("migrate", "--roles", "--print")
		return
	}
	f.ok("grants", "all that a relay needs")
	f.sequence(d.Sequence)
	if d.Unnumbered {
		f.lacksRows("outbox_meta lacks its row")
		return
	}
	f.lanes(d)
	if d.SameSystem {
		f.ok("numbering", "of this system and timeline")
	} else {
		f.add(Warn, "numbering", "of another system or timeline", "The database was restored or failed over since. A "+
			"relay begins a new incarnation of the numbering at its next claim; consumers in watermark mode "+
			"stop there.",
			"Read docs/restore.md before relays start.")
	}
	f.identity("identity", d.ByStart, "A relay begins a new incarnation of the numbering after each restart of the "+
		"server; "+
		"consumers in watermark mode stop there.")
	f.leases(d)
	for _, one := range d.Troubled {
		f.troubled(one)
	}
	if len(d.Versions) > 1 {
		f.add(Warn, "versions", "relays are of different versions: "+few(d.Versions), "An older one works as its "+
			"release did, with the faults that newer ones have mended.",
			"It is so while a deployment runs. After it, stop the older one: a deployment has forgotten it.")
	}
	f.aside(d)
	f.vacuum(d.Vacuum)
}

// troubled says what a live relay has told of itself.
func (f *findings) troubled(one string) {
	next := "The error says what it cannot do: of Kafka or Postgres, for one lane alone, or read the WAL."
	if strings.HasSuffix(one, ": its work is not done") {
		next = "It has met no error, and waits: for a quota of Kafka, of which its log says \"Kafka throttles this " +
			"client\"; for a broker; or for a session's lock, see `waits`."
	}
	f.add(Fail, "relays", one, "This relay tries again and again. What waits for that is not published, or late.", next)
}

// identity says by what the database's server is told from another one after a failover or a restore.
func (f *findings) identity(check string, byStart bool, means string) {
	if !byStart {
		f.ok(check, "known by its system identifier and timeline")
		return
	}
	f.add(Warn, check, "known by the time of its start: it tells the tables' owner neither system identifier nor "+
		"timeline",
		means, "grant execute on function pg_control_system(), pg_current_wal_lsn(), pg_walfile_name(pg_lsn) to the "+
			"tables' owner; where the platform refuses: docs/platforms/README.md")
}

func (f *findings) sequence(s operator.SequenceDiagnosis) {
	if s.Other != "" {
		f.add(Fail, "sequence", "outbox_event.id comes from "+s.Other+", and not from outbox_event_id_seq",
			"Relays follow outbox_event_id_seq, which says nothing of these ids: they refuse to start.",
			"alter sequence outbox_event_id_seq rename to ... (it is another's), then alter sequence "+s.Other+
				" rename to outbox_event_id_seq")
		return
	}
	if s.Cache != 1 || s.Cycle || s.Increment != 1 {
		f.add(Fail, "sequence", fmt.Sprintf("outbox_event.id: cache %d, increment %d, cycle %s", s.Cache, s.Increment,
			onOff(s.Cycle)),
			"Ids are the order of events. A cache hands a later writer a lower id, and keys lose their order.",
			"alter sequence outbox_event_id_seq cache 1 increment 1 no cycle; then let all producers connect anew")
	}
	if s.Highest > s.Last {
		f.add(Fail, "sequence", fmt.Sprintf("the last id drawn is %d, and the tables hold %d", s.Last, s.Highest),
			"The sequence was not restored with its tables: new events get ids below older ones, or ids that exist.",
			"Read docs/restore.md first. Then this turns it forward:")
		f.runWhy("fence")
	}
	if s.Cache == 1 && !s.Cycle && s.Increment == 1 && s.Highest <= s.Last {
		f.ok("sequence", "cache 1, and ahead of its tables")
	}
}

func (f *findings) lanes(d operator.Diagnosis) {
	switch {
	case len(d.ChangedHashes) > 0:
		f.add(Fail, "hash", fmt.Sprintf("%d of the test vectors hash otherwise on this server", len(d.ChangedHashes)),
			"A key's lane comes from a hash that Postgres does not document. Events from before and after the change "+
				"are in two lanes, and pass each other.",
			"Stop the producers, drain the outbox on the old server, and only then move; or drain now with the "+
				"producers stopped.")
	case d.Misplaced > 0:
		f.add(Fail, "hash", fmt.Sprintf("%d waiting events are not in their key's lane", d.Misplaced),
			"They were written on a server that hashes otherwise, and newer events of their keys may pass them.",
			"Stop the producers until the outbox is empty.")
	default:
		f.ok("hash", "as on the servers it was tested on")
	}
}

func (f *findings) lacksRows(which string) {
	f.add(Fail, "leases", which, "No relay works. The tables were truncated, or restored without their data.",
		"This makes what is missing, and begins a new numbering:")
	f.runWhy("fence")
}

func (f *findings) leases(d operator.Diagnosis) {
	found := fmt.Sprintf("%d relays, %d of 32 lanes owned, %d overdue, %d with events, the oldest waits %v", d.Members,
		32-d.MissingLanes-d.FreeLanes, d.OverdueLanes, d.WaitingLanes, d.Oldest.Round(time.Millisecond))
	var silent []string
	for _, s := range d.Silent {
		silent = append(silent, fmt.Sprintf("%s was last heard of %v ago", s.Name, s.Ago.Round(time.Second)))
	}
	if len(silent) > 0 {
		found += "; " + strings.Join(silent, ", ")
	}
	none := d.Members == 0
	switch {
	case d.Divided != "":
		f.add(Fail, "leases", d.Divided+" has partitions or child tables",
			"No relay works: it finds rows by their positions, which are the same in each of these tables.",
			"Detach them, or alter table ... no inherit "+d.Divided+". What stands in them is not published: "+
				"insert it into outbox_event again, without its ids.")
	case d.MissingLanes > 0:
		f.lacksRows(fmt.Sprintf("outbox_lane lacks %d of its 32 rows", d.MissingLanes))
	case none && (len(silent) > 0 || d.Oldest > waitsLong && len(d.Sessions) > 0),
		lacks(d.Sessions) && (!d.Shared || none && d.Oldest > waitsLong):
		f.noHeartbeat(found, d)
	case none && d.WaitingLanes > 0 && d.Oldest > waitsLong:
		f.add(Fail, "leases", found, "Events wait and no relay runs.", "")
		f.run("run")
	case none && d.WaitingLanes > 0:
		f.add(Warn, "leases", found, "Events wait and no relay runs.", "")
		f.run("run")
	case d.Oldest > waitsLong && d.Publishes && d.OverdueLanes == 0 && len(d.Troubled) == 0:
		f.add(Warn, "leases", found, "Relays publish, and are far behind with these events.",
			"See whether the backlog falls; docs/scaling.md")
	case d.WaitingLanes > 0 && d.Oldest > waitsLong:
		f.add(Fail, "leases", found, "Relays run, and do not publish these events, or are far behind with them.",
			"Look again in a minute: when the age grows, the relays' logs say what they cannot do.")
		f.run("lanes")
	case d.OverdueLanes > 0:
		f.add(Warn, "leases", found, "Nobody renews or takes these lanes. Right after a relay has died this is "+
			"normal, for a lease's length.",
			"Look again in a minute; then at the relays' logs, and at the lanes:")
		f.run("lanes")
	case len(silent) > 0:
		f.add(Warn, "leases", found, "Relays were killed, or are frozen; others have their lanes by now.",
			"Look at these processes and their machines.")
	default:
		f.ok("leases", "%s", found)
	}
}

// few names the first of many.
func few(list []string) string {
	const most = 6
	if n := len(list) - most; n > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), n)
	}
	return strings.Join(list, ", ")
}

// lacks reports whether a role of relays lacks a right.
func lacks(list []operator.RelaySessions) bool {
	return slices.ContainsFunc(list, func(s operator.RelaySessions) bool { return len(s.Missing) > 0 })
}

// noHeartbeat says what is known of relays that do not write their heartbeats.
func (f *findings) noHeartbeat(found string, d operator.Diagnosis) {
	const ask = "Its /readyz or log says which."
	means := "What is appended waits. "
	for _, s := range d.Sessions {
		found += fmt.Sprintf("; relays run (%d sessions as %s)", s.Count, s.Role)
		if len(s.Missing) > 0 {
			found += ", and cannot write their heartbeats: it lacks " + few(s.Missing)
		}
	}
	if d.Shared {
		means += "These sessions may be of another schema's relays. "
	}
	switch {
	case lacks(d.Sessions):
		f.add(Fail, "leases", found, means+"Another relay of this role would fail as well.", grant("effectonce_relay"))
		f.run("migrate", "--roles", "--print")
	case len(d.Sessions) > 0:
		f.add(Fail, "leases", found, means+"A relay is frozen or cut off from Postgres, or Postgres refuses its "+
			"heartbeat.", ask)
	default:
		if d.Unseen != "" {
			found += "; whether relays have sessions is not known: " + d.Unseen
		}
		f.add(Fail, "leases", found, means+"The last relays did not leave: they were killed, are frozen or cut off "+
			"from Postgres, or it refuses them (password, grant).", ask+" If none runs, start one: a relay that wakes "+
			"up finds that its lanes are another's, and publishes nothing more for them.")
		f.run("run")
	}
}

func (f *findings) aside(d operator.Diagnosis) {
	if d.Parked+d.ParkedKeys > 0 {
		f.add(Warn, "parked", fmt.Sprintf("%d events, of %d keys or alone", d.Parked, d.ParkedKeys),
			"Kafka refused an event of each key for certain. What comes later for the key waits behind it.",
			"See why, mend it, and then release or discard them.")
		f.run("parked", "keys")
	} else {
		f.ok("parked", "none")
	}
	f.held(d.Topics, d.Holding)
	if d.Undue > 0 {
		f.add(Warn, "scheduled", fmt.Sprintf("due for more than a minute: %d events", d.Undue),
			"The owner of a lane moves its due events; it does not, or there is none.", "See which lanes have no "+
				"owner; `relay run` when no relay does.")
		f.run("lanes")
	} else {
		f.ok("scheduled", "none is overdue")
	}
}

// held separates pauses, which an operator ends, from holds that end by themselves, and gives the relays' reasons.
func (f *findings) held(topics []operator.Topic, why []string) {
	held, paused := "", ""
	for _, t := range topics {
		switch {
		case t.PausedAt != nil:
			if paused == "" {
				paused = t.Topic
			}
			f.add(Warn, "paused", fmt.Sprintf("%s (%s: %s), %d events", t.Topic, t.PausedBy, t.Reason, t.Held),
				"Its events are set aside, in order, until somebody resumes it.",
				"Ask "+t.PausedBy+" first: a pause has a reason.")
			f.runWhy("topics", "resume", "--topic="+t.Topic)
		case t.Held > 0:
			held = t.Topic
			found := fmt.Sprintf("%s: %d events", t.Topic, t.Held)
			next := "Look at what is said of topic " + t.Topic + " below, its brokers and its ACLs."
			for _, one := range why {
				if !strings.Contains(one, "topic "+t.Topic+" for ") && !strings.Contains(one, "topic "+t.Topic+"/") {
					continue
				}
				found += "; " + one
				if next = "Mend what the relay names."; strings.Contains(one, kafka.TopicAuthorizationFailed.Title()) {
					next = allow("WRITE", kafka.TopicAuthorizationFailed)
				}
			}
			f.add(Warn, "held", found, "The topic, or a partition of it, "+
				"does not take them now. They go out by themselves, in order, once it does.", next)
			f.run("topics", "held", "--topic="+t.Topic)
		}
	}
	if held == "" {
		f.ok("held", "none")
	}
	if paused == "" {
		f.ok("paused", "no topic")
	}
}

func (f *findings) vacuum(v operator.VacuumDiagnosis) {
	ago := "never, as far as is known"
	if v.Ago != nil {
		ago = v.Ago.Round(time.Second).String() + " ago"
	}
	found := fmt.Sprintf("outbox_event: %d rows, %d dead, vacuumed %s", v.Live, v.Dead, ago)
	switch {
	case v.Off:
		f.add(Fail, "vacuum", found+", autovacuum is off for it", "Every published event leaves a dead row.",
			"alter table outbox_event reset (autovacuum_enabled)")
	case v.Dead > deadRows:
		f.add(Warn, "vacuum", found, "Vacuum does not keep up, or a snapshot keeps it from removing them.",
			"Look at the oldest snapshot above; then: vacuum outbox_event")
	default:
		f.ok("vacuum", "%s", found)
	}
}
