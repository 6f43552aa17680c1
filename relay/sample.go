package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// SampleLimit is where the counts of a Sample end.
const SampleLimit = 100_000

// Sample has figures of an outbox that are cheap enough to read every few seconds. Counts end at SampleLimit. All but
// Members are the same for every relay.
type Sample struct {
	// Backlog is how many events are in the outbox, those under way included. Oldest is the age of the oldest, Lanes
	// that of each lane's oldest; 0 where there is none.
	Backlog int64
	Oldest  time.Duration
	Lanes   [Lanes]time.Duration
	// LastID is the last id that a producer has drawn. It rises by one for each event, appended or rolled back.
	LastID int64
	// Owned is how many lanes have an owner whose lease runs, of [Lanes]. Members is how many relays are alive.
	Owned, Members int
	// Held events wait, those of paused topics included. The others wait for HeldPartitions that do not answer (a
	// refused topic counts as one), the oldest since HeldFor.
	Held, HeldPartitions int64
	HeldFor              time.Duration
	// Parked events wait for an operator. Of ParkedKeys, Releasing are being released; ParkedFor is the longest time
	// that a key has been in its state.
	Parked, ParkedKeys, Releasing int64
	ParkedFor                     time.Duration
	// Scheduled events wait for their time; ScheduledLate is how long the first one has been due.
	Scheduled     int64
	ScheduledLate time.Duration
	// PausedTopics were paused by an operator, the first PausedFor ago.
	PausedTopics int64
	PausedFor    time.Duration
	// ArchiveStray is about how many archived events are in no day: the days were not made in time.
	ArchiveStray int64
	// WAL is nil when no relay has read the WAL for this outbox.
	WAL *WALStatus
	// XminAge is how many transactions ago the oldest snapshot or transaction of the database began, and
	// OldestTransaction how long ago: rows that died since stay in the table, and reading gets slower.
	// OldestTransaction leaves out sessions of other roles unless the relay's role is in pg_read_all_stats. Both are -1
	// if the role lacks the right.
	XminAge           int64
	OldestTransaction time.Duration
}

// Sample reads the figures now, from the pool given to New.
func (r *Relay) Sample(ctx context.Context) (Sample, error) {
	from := sampler{of: Outbox{r.db, r.schema}, lease: r.cfg.Lease, lanes: []int16{}, floors: []int64{}}
	if e := r.now.Load(); e != nil {
		from.lanes, from.floors, from.ids = e.Lanes.Reaches()
	}
	return from.sample(ctx)
}

// Sample reads the figures now. A relay's Sample skips dead rows at the beginning of the table; this one reads them.
// Members are those of the last 15 s.
func (o *Outbox) Sample(ctx context.Context) (Sample, error) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		return Sample{}, err
	}
	return sampler{of: *o, lease: cfg.Lease, lanes: []int16{}, floors: []int64{}}.sample(ctx)
}

// sampler reads a Sample, with known floors.
type sampler struct {
	of     Outbox
	lease  time.Duration
	lanes  []int16
	floors []int64
	ids    string
}

func (r sampler) sql(statement string) string { return r.of.schema.Expand(statement) }

func (r sampler) sample(ctx context.Context) (Sample, error) {
	var s Sample
	var ages []float64
	var held, parked, late, paused float64
	b := pg.Transaction(r.lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(r.sql(sql.SampleEvents), SampleLimit, r.lanes, r.floors, r.ids, sql.Interval(r.lease)).QueryRow(
			func(row pgx.Row) error {
				return row.Scan(&s.Backlog, &ages, &s.Owned, &s.Members)
			})
		b.Queue(r.sql(sql.LastID)).QueryRow(func(row pgx.Row) error { return row.Scan(&s.LastID) })
		b.Queue(r.sql(sql.SampleHeld), SampleLimit).QueryRow(func(row pgx.Row) error {
			return row.Scan(&s.Held, &s.HeldPartitions, &held)
		})
		b.Queue(r.sql(sql.SampleParked), SampleLimit).QueryRow(func(row pgx.Row) error {
			return row.Scan(&s.Parked, &s.ParkedKeys, &s.Releasing, &parked)
		})
		b.Queue(r.sql(sql.SampleScheduled), SampleLimit).QueryRow(func(row pgx.Row) error {
			return row.Scan(&s.Scheduled, &late)
		})
		b.Queue(r.sql(sql.SampleTopics)).QueryRow(func(row pgx.Row) error {
			return row.Scan(&s.PausedTopics, &paused, &s.ArchiveStray)
		})
	})
	if err := r.of.db.SendBatch(ctx, b).Close(); err != nil {
		return Sample{}, fmt.Errorf("relay: reading the figures of the outbox: %w", err)
	}
	for lane, age := range ages {
		if lane < Lanes {
			s.Lanes[lane] = sql.Seconds(age)
			s.Oldest = max(s.Oldest, s.Lanes[lane])
		}
	}
	s.HeldFor, s.ParkedFor, s.ScheduledLate, s.PausedFor = sql.Seconds(held), sql.Seconds(parked), sql.Seconds(late),
		sql.Seconds(paused)
	var err error
	if s.WAL, err = r.of.WALStatus(ctx); err != nil {
		return Sample{}, err
	}
	return s, r.horizon(ctx, &s)
}

// horizon is separate: a role that may not read sessions still gets the other figures.
func (r sampler) horizon(ctx context.Context, s *Sample) error {
	var oldest float64
	err := r.of.db.QueryRow(ctx, r.sql(sql.SampleHorizon)).Scan(&s.XminAge, &oldest)
	s.OldestTransaction = sql.Seconds(oldest)
	if err == nil {
		return nil
	}
	s.XminAge, s.OldestTransaction = -1, -1
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return nil
	}
	return fmt.Errorf("relay: reading the age of the oldest transaction: %w", err)
}
