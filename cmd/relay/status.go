package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

type statusCommand struct {
	database
	JSON    bool          `name:"json" help:"Print JSON instead of tables: every lane by itself, durations in nanoseconds."`
	Timeout time.Duration `default:"30s" help:"How long it may take; counting ten million events takes about a second."`
}

func (c *statusCommand) run(ctx context.Context, p *program) error {
	if c.several {
		return c.overview(ctx, p)
	}
	st, err := c.status(ctx, c.Timeout)
	if err != nil {
		return err
	}
	consumers, without, err := c.consumers(ctx, c.Timeout)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.stdout, struct {
			operator.Status
			Consumers []consumerLine `json:"consumers"`
			NotLooked []string       `json:"not_looked_at"`
		}{st, orEmpty(consumers), orEmpty(without)})
	}
	if err := writeStatus(p.stdout, st); err != nil {
		return err
	}
	for _, why := range without {
		fmt.Fprintln(p.stdout, "\n"+why)
	}
	if len(consumers) == 0 {
		return nil
	}
	const head = "\nCONSUMER\tPARTITIONS\tHALTED\tPARKED\tQUARANTINED\tUNMOVED"
	return writeList(p.stdout, false, consumers, head, func(table io.Writer, l consumerLine) {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%s\n", l.Consumer, l.Partitions, l.Halted, l.Parked, l.Quarantined,
			age(l.Unmoved, l.Partitions > 0))
	})
}

// consumerLine is a consumer whose inbox is in the same database.
type consumerLine struct {
	Consumer    string        `json:"consumer"`
	Partitions  int           `json:"partitions"` // in which it has decided an event
	Halted      int           `json:"halted"`
	Parked      int64         `json:"parked"`
	Quarantined int64         `json:"quarantined"`
	Unmoved     time.Duration `json:"unmoved"` // since it last decided an event, in any of them
}

// consumers returns none if there is no inbox. without says why it could not be looked at.
func (d database) consumers(ctx context.Context, timeout time.Duration) (list []consumerLine, without []string,
	err error,
) {
	err = d.withReader(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		found, err := inboxoperator.Diagnose(ctx, pool, d.Schema, true)
		if err != nil {
			why, err := d.notLooked(ctx, pool, migrations.Inbox, err)
			if why != "" {
				without = append(without, why)
			}
			return err
		}
		if len(found.MissingRights) > 0 {
			without = append(without, "Not looked at: inbox: this role lacks "+strings.Join(found.MissingRights, ", ")+
				": grant that.")
		}
		for _, c := range found.Consumers {
			l := consumerLine{
				Consumer: c.Consumer, Partitions: len(c.Partitions), Parked: c.Parked,
				Quarantined: c.Quarantined,
			}
			for i, p := range c.Partitions {
				if p.HaltedAt != nil {
					l.Halted++
				}
				if i == 0 || p.Unmoved < l.Unmoved {
					l.Unmoved = p.Unmoved
				}
			}
			list = append(list, l)
		}
		return err
	})
	return list, without, inboxError(err)
}

// status reads the state of the outbox.
func (d database) status(ctx context.Context, timeout time.Duration) (st operator.Status, err error) {
	err = d.withReader(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		st, err = operator.ReadStatus(ctx, pool, d.Schema)
		return outboxError(err)
	})
	return st, err
}

func writeStatus(w io.Writer, st operator.Status) error {
	table := newTable(w)
	fmt.Fprintf(table, "BACKLOG\tOLDEST\n%d\t%s\n", st.Backlog, age(st.Oldest, st.Backlog > 0))
	var held, parked int64
	for _, l := range st.Lanes {
		held, parked = held+l.Held, parked+l.Parked
	}
	if held+parked > 0 || st.ParkedFor > 0 { // they are neither backlog nor published
		fmt.Fprintf(table, "\nHELD\tPARKED\tOLDEST KEY\n%d\t%d\t%s\n", held, parked,
			age(st.ParkedFor, st.ParkedFor > 0))
	}
	if st.Backlog == 0 && held > 0 {
		fmt.Fprintf(table, "\nNo event is in the backlog, and %d wait: they are held, in order, until their topic or "+
			"partition takes them.\n", held)
	}
	if len(st.Aside) > 0 {
		fmt.Fprintln(table, "\nSET ASIDE\tHELD\tPAUSED\tBY\tREASON")
		for _, t := range st.Aside {
			paused := "-"
			if t.PausedAt != nil {
				paused = age(time.Since(*t.PausedAt), true)
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", t.Topic, t.Held, paused, cmp.Or(t.PausedBy, "-"),
				cmp.Or(t.Reason, "-"))
		}
	}
	if s := st.Scheduled; s.Next != nil {
		fmt.Fprintf(table, "\nSCHEDULED\tDUE NOW\tNEXT\n%d\t%d\t%s\n", s.Events, s.Overdue,
			s.Next.UTC().Format(time.RFC3339))
	}
	if len(st.Open) > 0 {
		fmt.Fprintln(table, "\nOPEN TRANSACTION\tUSER\tPROGRAM\tSTATE\tFOR")
		for _, o := range st.Open {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", o.PID, cmp.Or(o.User, "-"), cmp.Or(o.Application, "-"),
				cmp.Or(o.State, "-"), age(o.For, true))
		}
	}
	if s := st.WAL; s != nil {
		fmt.Fprintf(table, "\nSLOT\tSTATE\tREADER\tLANES\tLAG\tSINCE\tHELD\tSAFE\n%s\t%s\t%s\t%d of "+
			"%d\t%s\t%s\t%s\t%s\n", s.Slot, slotState(s),
			cmp.Or(s.Reader, "-"), s.Lanes, relay.Lanes, size(s.LagBytes), age(s.LagTime, true), size(s.HeldBytes),
			safe(s))
	}
	fmt.Fprintln(table, "\nRELAY\tOWNER\tLANES\tOVERDUE\tCLAIMED\tOLDEST\tLAST HEARD OF\tWELL FOR\tLAST ACK\t"+
		"VERSION\tFAILS FOR\tERROR")
	for _, r := range st.Relays.List {
		owner := "(free)"
		if r.Owner != nil {
			owner = r.Owner.String()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(r.Name, "-"), owner,
			ranges(r.Lanes), r.Overdue, r.Claimed, age(r.Oldest, r.Oldest > 0), since(r.Heard), age(r.Well, r.Alive),
			since(r.Acked), cmp.Or(r.Version, "-"), since(r.TroubleFor), errorText(r.Trouble))
	}
	if len(st.Topics) > 0 {
		fmt.Fprintln(table, "\nTOPIC\tBACKLOG\tOLDEST")
		for _, t := range st.Topics {
			fmt.Fprintf(table, "%s\t%d\t%s\n", t.Topic, t.Backlog, age(t.Oldest, true))
		}
	}
	return table.Flush()
}

// since formats an age; nil: unknown.
func since(d *time.Duration) string {
	if d == nil {
		return "-"
	}
	return age(*d, true)
}

func age(d time.Duration, known bool) string {
	switch {
	case !known:
		return "-"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// ranges formats ascending numbers as ranges: 0-3,7.
func ranges(lanes []int16) string {
	var parts []string
	for i := 0; i < len(lanes); {
		j := i
		for j+1 < len(lanes) && lanes[j+1] == lanes[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(lanes[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", lanes[i], lanes[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

func slotState(s *relay.WALStatus) string {
	switch {
	case !s.Exists:
		return "missing"
	case !s.Active:
		return s.State + ", nobody reads"
	}
	return s.State
}

func safe(s *relay.WALStatus) string {
	switch {
	case !s.Exists:
		return "-"
	case s.SafeBytes == nil:
		return "no limit"
	}
	return size(*s.SafeBytes)
}

// size formats bytes.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
