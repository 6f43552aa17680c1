package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/inbox/internal/days"
)

// SampleLimit is where the counts of a Sample end.
const SampleLimit = 100_000

// Sample is the state of a consumer's inbox in figures that are cheap enough to be asked for every few seconds. Every
// process of the consumer reads the same. Counts end at SampleLimit.
type Sample struct {
	// Parked events wait for a person, those that only wait behind another of their key included; ParkedFor is how long
	// the oldest has waited, a quarantined one included.
	Parked    int64
	ParkedFor time.Duration
	// Quarantined events are too old, or too far in the future, for anybody to tell whether they were applied.
	Quarantined int64
	// BlockedKeys have events in the list of parked ones. Releasing of them are on their way; AtBound have so many that
	// the next one halts its partition.
	BlockedKeys, Releasing, AtBound int64
	// Halted is how many partitions wait for a person.
	Halted int64
	// DaysEnd is when the last day ends that has a partition, counted from today without a hole. Ids of later days
	// would wait.
	DaysEnd time.Time
}

// Sample reads the figures now, from the pool given to New.
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
