package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/inbox/internal/days"
)

// SampleLimit is the highest count in a Sample.
const SampleLimit = 100_000

// Sample is the state of a consumer's inbox in figures that are cheap enough to read every few seconds. All processes
// of the consumer read the same figures. Counts end at SampleLimit.
type Sample struct {
	// Parked is the number of parked events, including those that only wait behind another event of their key.
	// ParkedFor is how long the oldest has waited, quarantined events included.
	Parked    int64
	ParkedFor time.Duration
	// Quarantined is the number of quarantined events: the inbox cannot tell whether they were applied.
	Quarantined int64
	// BlockedKeys is the number of parked keys. Releasing is how many of them are being released. AtBound is how many
	// have a full list: their next event halts its partition.
	BlockedKeys, Releasing, AtBound int64
	// Halted is the number of partitions that wait for an operator.
	Halted int64
	// DaysEnd is the end of the last day that has a partition, counted from today without a gap. Ids of later days
	// would have to wait.
	DaysEnd time.Time
}

// Sample reads the current figures, from the pool given to New.
func (in *Inbox) Sample(ctx context.Context) (Sample, error) {
	var s Sample
	var parked float64
	var today days.Number
	var attached []string
	b := new(pgx.Batch)
	b.Queue(in.q(sqlSampleParked), in.consumer, SampleLimit).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.Parked, &s.Quarantined, &parked)
	})
	b.Queue(in.q(sqlSampleKeys), in.consumer, SampleLimit).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.BlockedKeys, &s.Releasing, &s.AtBound)
	})
	b.Queue(in.q(sqlSampleHalted), in.consumer).QueryRow(func(row pgx.Row) error { return row.Scan(&s.Halted) })
	b.Queue(in.q(sqlSampleDays)).QueryRow(func(row pgx.Row) error { return row.Scan(&today, &attached) })
	if err := in.db.SendBatch(ctx, b).Close(); err != nil {
		return Sample{}, fmt.Errorf("inbox: reading the figures of consumer %q: %w", in.consumer, err)
	}
	s.ParkedFor = time.Duration(parked * float64(time.Second))
	s.DaysEnd = days.Begin(days.Through(attached, today) + 1)
	return s, nil
}
