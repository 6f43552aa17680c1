package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/failpoint"
)

// Pins returns a function that pins a topic's partition count in the outbox's database: the first count that is given
// for a topic stays, and the function returns the pinned one. Give it to the publisher: a topic that grew would send a
// key's next events to another partition, past the ones before.
func Pins(db *pgxpool.Pool, schema string) (func(ctx context.Context, topic string, partitions int) (int, error), error) {
	q, err := newQueries(schema)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return func(ctx context.Context, topic string, partitions int) (pinned int, err error) {
		for range 2 { // a row that another relay inserts at the same moment is only seen by the second look
			failpoint.Hit(failpoint.RelayPin)
			err = failpoint.After(failpoint.RelayPinned, db.QueryRow(ctx, q.pin, topic, partitions).Scan(&pinned))
			if !errors.Is(err, pgx.ErrNoRows) {
				break
			}
		}
		if err != nil {
			return 0, fmt.Errorf("relay: pinning the partition count of topic %q: %w", topic, err)
		}
		return pinned, nil
	}, nil
}
