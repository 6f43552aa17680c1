package cycle

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// Heads reads the first held event of each place, after recording that it is sent, and with the barrier of a claim.
func (r *Cycle) Heads(ctx context.Context, s *pg.Session, found map[delivery.Place]lanes.Grant) (heads []delivery.Place,
	c *Claim, err error,
) {
	var set sql.Fenced
	var topics []string
	var partitions []int32
	c, perLane := &Claim{}, map[int16]*Part{}
	for at, g := range found {
		set.Add(g.Lane, g.Fence, 0)
		topics, partitions = append(topics, at.Topic), append(partitions, at.Partition)
		perLane[g.Lane] = &Part{}
	}
	rows, same := newRowReader(r.ParkEvent), true
	checked := r.Same()
	err = s.Send(ctx, pg.Transaction(r.Lease, pg.Standby, func(b *pgx.Batch) {
		b.Queue(r.SQL(sql.Lock), set.Lanes, set.Fences, r.Owner)
		checked.Queue(b)
		b.Queue(r.SQL(sql.Meta)).QueryRow(func(row pgx.Row) error { return row.Scan(&c.Epoch, &same) })
		b.Queue(r.SQL(sql.Try), set.Lanes, set.Fences, r.Owner, topics, partitions).Query(func(pr pgx.Rows) error {
			return rows.readHeld(pr, c, perLane)
		})
		b.Queue(r.SQL(sql.Paused)).QueryRow(func(row pgx.Row) error { return row.Scan(&c.Paused) })
	}))
	err = checked.Error(err)
	if err == nil && !same {
		c.Epoch, err = r.RaiseIncarnation(ctx, s)
	}
	if err != nil {
		return nil, &Claim{}, err
	}
	for i := range c.Events {
		c.Events[i].Position.Epoch = c.Epoch
		heads = append(heads, delivery.At(c.Events[i].Topic, c.Items[i].Partition))
	}
	return heads, c, nil
}
