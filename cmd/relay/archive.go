package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// archiveCommand has the operators' commands for the archive.
type archiveCommand struct {
	List     archiveListCommand     `cmd:"" help:"List the days of published events that are kept."`
	Maintain archiveMaintainCommand `cmd:"" help:"Make the archive's coming days and drop those that are over, once."`
}

type archiveListCommand struct{ outboxRead }

func (c *archiveListCommand) run(ctx context.Context, p *program) error {
	return c.read(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.Archive(ctx)
		if err != nil {
			return err
		}
		return writeList(p.stdout, c.JSON, list, "DAY\tEVENTS\tBYTES", func(table io.Writer, d operator.ArchiveDay) {
			events := "-"
			if d.Events >= 0 {
				events = fmt.Sprint(d.Events)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\n", cmp.Or(d.Day, "(none)"), events, d.Bytes)
		})
	})
}

type archiveMaintainCommand struct {
	database
	jsonFlag
	ArchiveDays int           `default:"0" shown:"(required)" help:"How many days of published events are kept, 1 to 3660; the relays' own setting."`
	Timeout     time.Duration `default:"30m" help:"Time limit of the pass; the next pass continues where it stopped."`
}

// Help is the longer text of --help.
func (*archiveMaintainCommand) Help() string {
	return `For a cron job that connects as the owner of the tables, where the relays' own role may not create and drop them. Once a
day is enough. Without it nothing stops: events go into the archive's default partition, which is slow to clean.`
}

func (c *archiveMaintainCommand) run(ctx context.Context, p *program) error {
	if c.ArchiveDays < 1 || c.ArchiveDays > 3660 {
		return service.Usage("--archive-days is %d: want 1 to 3660", c.ArchiveDays)
	}
	return c.withPool(ctx, c.Timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		box, err := relay.Open(pool, c.Schema)
		if err != nil {
			return outboxError(err)
		}
		done, err := box.MaintainArchive(ctx, c.ArchiveDays)
		if err != nil {
			return outboxError(err)
		}
		p.log.Info("the archive is maintained", "days_made", len(done.Made), "days_dropped", len(done.Dropped),
			"rows_cleaned", done.Cleaned, "left_for_next_time", done.Left)
		return c.print(p, relay.Archived{
			Made: orEmpty(done.Made), Dropped: orEmpty(done.Dropped), Cleaned: done.Cleaned, Left: orEmpty(done.Left),
		})
	})
}

type replayCommand struct {
	database
	auditFlags
	From   time.Time `line:"" shown:"(required)" help:"Events published at or after this time, as 2026-01-02T15:04:05Z. Needed without --query."`
	To     time.Time `line:"" shown:"now" help:"Events published before this time."`
	Topic  string    `line:"" shown:"(required)" help:"Their topic. Needed without --query."`
	Key    *string   `line:"" shown:"all" help:"Only this key."`
	Tenant *string   `line:"" shown:"all" help:"Only this tenant."`
	Type   string    `line:"" shown:"all" help:"Only this type."`
	Query  string    `line:"" shown:"(the archive)" help:"In place of all these: a select whose rows are the events, in their order."`
	After  int64     `line:"" default:"0" help:"Continue after this position. A replay that ended early prints it, with the --to to use."`
	Rate   int       `line:"" default:"0" help:"At most so many events a second; 0 for as many as the relays publish."`
	DryRun bool      `line:"" help:"Count them, show the first ten, and change nothing."`
	jsonFlag
	Timeout time.Duration `default:"24h" help:"How long it may take."`
}

// Help is the longer text of --help.
func (*replayCommand) Help() string {
	return `Publishes archived events again (relay run --archive-days), in their old order, with their own ids and new numbers. Do a
--dry-run first.

Without an archive, --query selects the events: from a restored copy of the outbox, or from tables of your own that keep
the ids. Its columns have the names of those of outbox_event. message_id (uuid), topic, key, type and payload (bytea) are required;
source, tenant, content_type, headers and event_time are not. It is run once and can change nothing:

  relay replay --dry-run --query "select message_id, 'orders' as topic, customer as key, 'OrderPlaced' as type,
    convert_to(body::text, 'UTF8') as payload from orders where placed > '2026-01-02' order by placed, id"

Consumers that deduplicate by id, such as workers with an inbox, drop the events that they have applied. To apply an event
again there, delete its row from the inbox first. An inbox quarantines ids that are older than its window. Consumers without
deduplication see every event twice. Old events of a key come after newer ones: consumers that keep the last state must
compare ce_time.`
}

func (c *replayCommand) run(ctx context.Context, p *program) error {
	switch archived := !c.From.IsZero() || !c.To.IsZero() || c.Topic != "" || c.Key != nil || c.Tenant != nil ||
		c.Type != ""; {
	case c.Query != "" && archived:
		return service.Usage("--query excludes --from, --to, --topic, --key, --tenant and --type")
	case c.Query == "" && (c.From.IsZero() || c.Topic == ""):
		return service.Usage("--from and --topic, or --query, are needed: say what to publish once more")
	}
	if !c.DryRun {
		if err := c.check(); err != nil {
			return err
		}
	}
	return c.operate(ctx, p, c.Timeout, c.Operator, func(ctx context.Context, o *operator.Operator) error {
		return c.replay(ctx, p, o)
	})
}

func (c *replayCommand) replay(ctx context.Context, p *program, o *operator.Operator) error {
	choice := operator.Replay{
		Query: c.Query, From: c.From, To: c.To, Topic: c.Topic, Key: c.Key, Tenant: c.Tenant, Type: c.Type,
		After: c.After, Rate: c.Rate, Progress: every(replaySaid, func(done operator.ReplayResult) {
			p.log.Info("replaying", "events", done.Events, "last", done.Last)
		}),
	}
	if c.DryRun {
		plan, err := o.PlanReplay(ctx, choice)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(p.stdout, plan)
		}
		return writePlan(p.stdout, plan)
	}
	done, err := o.Replay(ctx, choice, c.Reason)
	switch {
	case err != nil && done.To.IsZero(): // it has not begun
		return err
	case err != nil && c.Query != "":
		return fmt.Errorf("%w (go on with --after %d, if the query gives its rows in the same order again)", err,
			done.Last)
	case err != nil:
		return fmt.Errorf("%w (go on with --after %d --to %s)", err, done.Last, done.To.UTC().Format(time.RFC3339Nano))
	}
	if c.JSON {
		return writeJSON(p.stdout, done)
	}
	fmt.Fprintf(p.stdout, "%d events are in the outbox again; the relays publish them.\n", done.Events)
	return nil
}

// replaySaid is the pause between two progress messages of a replay.
const replaySaid = 10 * time.Second

// every calls say at most once per pause.
func every(pause time.Duration, say func(operator.ReplayResult)) func(operator.ReplayResult) {
	last := time.Now()
	return func(done operator.ReplayResult) {
		if now := time.Now(); now.Sub(last) >= pause {
			last = now
			say(done)
		}
	}
}

func writePlan(w io.Writer, plan operator.ReplayPlan) error {
	if plan.Events == 0 {
		_, err := fmt.Fprintln(w, "There are no such events.")
		return err
	}
	fmt.Fprintf(w, "%s of %s, %d bytes", verbs.Plural(plan.Events, "event"), verbs.Plural(plan.Keys, "key"), plan.Bytes)
	if plan.First != nil {
		fmt.Fprintf(w, ", published from %s to %s", plan.First.UTC().Format(time.RFC3339),
			plan.Last.UTC().Format(time.RFC3339))
	}
	fmt.Fprint(w, ".")
	if twice := plan.Events - plan.IDs; twice > 0 {
		fmt.Fprintf(w, " %d of them repeat the id of another one.", twice)
	}
	fmt.Fprint(w, " The first:\n\n")
	table := newTable(w)
	fmt.Fprintln(table, "PLACE\tPUBLISHED\tID\tTENANT\tTOPIC\tKEY\tTYPE\tBYTES")
	for _, e := range plan.Head {
		published := "-"
		if e.PublishedAt != nil {
			published = e.PublishedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", e.Pos, published, e.MessageID, e.Tenant, e.Topic, e.Key,
			e.Type, e.Bytes)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\nNothing was changed. Workers with an inbox remove what they know; consumers without "+
		"one see these twice.")
	return err
}
