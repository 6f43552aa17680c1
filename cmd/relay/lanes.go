package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

type lanesCommand struct {
	database
	JSON    bool          `name:"json" help:"Print JSON instead of a table; durations in nanoseconds."`
	Timeout time.Duration `default:"30s" help:"How long it may take."`
}

// Help is the longer text of --help.
func (*lanesCommand) Help() string {
	return `A key's events share a lane, and a lane has one owner at a time. CLAIMED events are between claim and settle: those of a lane
whose lease is overdue are sent again by the next owner. HELD events go out by themselves once their partition or topic takes
them; PARKED ones wait for a person (relay parked).`
}

func (c *lanesCommand) run(ctx context.Context, p *program) error {
	st, err := c.status(ctx, c.Timeout)
	if err != nil {
		return err
	}
	const head = "LANE\tRELAY\tOWNER\tFENCE\tLEASE\tCLAIMED\tOLDEST\tHELD\tPARKED"
	return writeList(p.stdout, c.JSON, st.Lanes, head, func(table io.Writer, l operator.LaneStatus) {
		owner, lease := "(free)", "-"
		if l.Owner != nil {
			owner, lease = l.Owner.String(), "overdue"
		}
		if l.Lease > 0 {
			lease = age(l.Lease, true)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%d\t%s\t%d\t%d\n", l.Lane, cmp.Or(l.Name, "-"), owner, l.Fence, lease,
			l.Claimed, age(l.Oldest, l.Waiting), l.Held, l.Parked)
	})
}
