package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// kept is the first version whose standbys keep logical slots, as server_version_num.
const kept = 170000

// failoverSlot is what a primary knows of its standbys' copies of the relays' slot.
type failoverSlot struct {
	Number   int
	Failover bool     // standbys may keep the slot
	Waits    string   // synchronized_standby_slots
	Absent   []string // those of Waits that have no reader, or do not exist
	Standbys int64    // connected ones
	Slotless int64    // connected ones without a slot
	Blind    []string // slots of standbys without hot_standby_feedback
	Readers  []string // the standbys' slots
	Syncing  int64    // standbys with logical slots
}

// failover checks whether a promoted standby would have the relays' slot.
func (f *findings) failover(ctx context.Context, db *pgxpool.Pool, slot string) {
	const check = "failover slot"
	var s failoverSlot
	if err := db.QueryRow(ctx, queryFailoverSlot, slot).Scan(&s.Number, &s.Failover, &s.Waits, &s.Absent, &s.Standbys,
		&s.Slotless, &s.Blind, &s.Readers, &s.Syncing); err != nil {
		f.failed(check, err)
		return
	}
	const table = "After a failover relays read the table, and then a slot that they make: " +
		"nothing is lost by it."
	before := len(f.list)
	switch {
	case s.Number < kept:
		f.ok(check, "none before Postgres 17: after a failover relays read the table")
		return
	case len(s.Absent) > 0:
		f.add(Fail, check, "synchronized_standby_slots waits for "+strings.Join(s.Absent, ", ")+
			", which nobody reads", "Nothing is published from the WAL until that standby is back.",
			"Bring it back, or take it out of synchronized_standby_slots, and select pg_reload_conf()")
	case s.Standbys == 0:
		f.ok(check, "no standby is connected")
		return
	}
	if !s.Failover {
		f.add(Warn, check, slot+" is not one that standbys keep", table, "A relay of this version makes it one when "+
			"it begins to read: let the one that reads end, and see its log.")
	}
	if s.Slotless > 0 {
		f.add(Warn, check, fmt.Sprintf("%d standbys without a slot of their own", s.Slotless), table,
			"On the standby: primary_slot_name")
	}
	if len(s.Blind) > 0 {
		f.add(Warn, check, "hot_standby_feedback is off behind "+strings.Join(s.Blind, ", "), table,
			"On the standby: alter system set hot_standby_feedback = on; select pg_reload_conf()")
	}
	if s.Syncing == 0 {
		f.add(Warn, check, "no standby keeps logical slots", table, "On the standby: sync_replication_slots = on, and "+
			"dbname=... in primary_conninfo; then `relay doctor` there")
	}
	if s.Waits == "" && len(s.Readers) > 0 {
		f.add(Warn, check, "synchronized_standby_slots is empty", "The WAL feed may publish what no standby has. "+
			"An asynchronous standby that is promoted lacks it then.",
			"alter system set synchronized_standby_slots = '"+strings.Join(s.Readers, ", ")+
				"'; select pg_reload_conf(). Events wait then for all of these standbys.")
	}
	if len(f.list) == before {
		f.ok(check, "standbys keep %s, and readers wait for %s", slot, s.Waits)
	}
}

// standbySlot is what a standby knows of its copy of the relays' slot.
type standbySlot struct {
	Number         int
	Used           bool // relays read the WAL of this database
	Sync, Feedback bool
	SlotName       string
	Database       *bool // primary_conninfo names a database; nil: this role may not see that
	Kept           []string
	Unready        []string
}

// standby checks whether this standby, once promoted, would have the relays' slot.
func (f *findings) standby(ctx context.Context, db *pgxpool.Pool) {
	const check = "failover slot"
	var s standbySlot
	if err := db.QueryRow(ctx, queryStandbySlot).Scan(&s.Number, &s.Used, &s.Sync, &s.Feedback, &s.SlotName,
		&s.Database, &s.Kept, &s.Unready); err != nil {
		f.failed(check, err)
		return
	}
	if !s.Used || s.Number < kept {
		return
	}
	var wrong, next []string
	note := func(bad bool, found, set string) {
		if bad {
			wrong, next = append(wrong, found), append(next, set)
		}
	}
	note(!s.Sync, "sync_replication_slots is off", "sync_replication_slots = on")
	note(!s.Feedback, "hot_standby_feedback is off", "hot_standby_feedback = on")
	note(s.SlotName == "", "primary_slot_name is empty", "primary_slot_name = a physical slot of the primary")
	note(s.Database != nil && !*s.Database, "primary_conninfo names no database", "dbname=... in primary_conninfo")
	if len(wrong) == 0 {
		note(len(s.Unready) > 0, strings.Join(s.Unready, ", ")+" cannot be used yet", "wait for the primary's next "+
			"checkpoint, or select pg_log_standby_snapshot() there; then read the standby's log. A slot that is not "+
			"synced was made here: drop it")
		note(len(s.Kept)+len(s.Unready) == 0, "no slot of a relay is here", "`relay doctor` on the primary, and the "+
			"standby's log")
	}
	if len(wrong) > 0 {
		f.add(Warn, check, strings.Join(wrong, "; "), "Promoted now, this standby has no slot to go on with: relays "+
			"read the table then.", strings.Join(next, "; "))
		return
	}
	f.ok(check, "%s would go on after a promotion", strings.Join(s.Kept, ", "))
}
