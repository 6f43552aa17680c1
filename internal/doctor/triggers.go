package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// tables lists the tables of the migrations; a test compares them.
var tables = []string{
	"effectonce_migration", "idempotency_audit", "idempotency_block", "idempotency_key", "inbox_audit",
	"inbox_consumer", "inbox_days", "inbox_message", "inbox_message_any", "inbox_numbering", "inbox_parked",
	"inbox_parked_key", "inbox_progress", "inbox_watermark", "outbox_archive", "outbox_audit", "outbox_claim",
	"outbox_event", "outbox_held", "outbox_lane", "outbox_meta", "outbox_parked", "outbox_parked_key",
	"outbox_paused_topic", "outbox_scheduled", "outbox_streamed", "outbox_topic", "outbox_wal", "relay_member",
}

// ownTriggers lists the triggers of the migrations, as table, name and function; a test compares them.
var ownTriggers = []string{
	"inbox_consumer inbox_consumer_kept inbox_consumer_kept", "inbox_message inbox_guard inbox_guard",
	"inbox_message inbox_kept inbox_kept", "inbox_message inbox_kept_whole inbox_kept",
	"inbox_message_any inbox_guard inbox_guard", "inbox_message_any inbox_kept inbox_kept",
	"inbox_message_any inbox_kept_whole inbox_kept", "inbox_watermark inbox_guard inbox_guard",
	"inbox_watermark inbox_kept inbox_kept", "inbox_watermark inbox_kept_whole inbox_kept",
}

// missing is the name of a trigger of ours that is gone or disabled.
const missing = "missing"

// trigger is a trigger on one of our tables, or a rule, which has no function.
type trigger struct {
	Name  string // as in ownTriggers, or missing
	What  string
	Calls string
	Type  int // pg_trigger.tgtype
}

// Bits of pg_trigger.tgtype.
const (
	eachRow = 1
	before  = 2
)

func readTriggers(ctx context.Context, s Subject) ([]trigger, error) {
	rows, err := s.DB.Query(ctx, queryTriggers, tables, s.Schema, ownTriggers)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[trigger])
}

// triggers looks for foreign code that statements on our tables run.
func (f *findings) triggers(ctx context.Context, s Subject) {
	const check = "triggers"
	list, err := readTriggers(ctx, s)
	if err != nil {
		f.failed(check, err)
		return
	}
	others := 0
	for _, t := range list {
		if slices.Contains(ownTriggers, t.Name) {
			continue
		}
		others++
		switch {
		case t.Name == missing:
			f.add(Warn, check, t.What+" is gone or disabled", "It refuses what would lose events or apply them again, "+
				"without an error: a row deleted by hand, an effect that commits.", "alter table ... enable trigger; "+
				"if it is gone, make it as the migrations do (relay migrate --print)")
		case t.Calls == "":
			f.add(Warn, check, t.What, "A rule puts another statement in the place of ours, or beside it: rows are "+
				"neither written nor deleted, or the statement is refused (0A000), and relays or workers do nothing.",
				"Drop it: drop "+t.What)
		case t.Type&(before|eachRow) == before|eachRow:
			f.add(Warn, check, fmt.Sprintf("%s calls %s before each row", t.What, t.Calls), "It can swallow rows or "+
				"change them without an error: events are lost or sent again, leases and effects forgotten.",
				"Drop it, or let it look on AFTER the statement: drop "+t.What)
		default:
			f.add(Warn, check, fmt.Sprintf("%s calls %s", t.What, t.Calls), "It runs in the transactions of relays, "+
				"workers and producers, with their rights: its error is theirs, and they wait for it. It can write "+
				"to these tables.", "Drop it if nobody needs it: drop "+t.What)
		}
	}
	if others == 0 {
		f.ok(check, "none on these tables but ours, and no rules")
	}
}
