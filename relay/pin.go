package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// Pin pins a topic's partition count, and the Kafka cluster of all topics, in the outbox's database: the first count of
// a topic stays, and so does the first cluster. It returns the pinned count. It refuses another cluster, until an
// operator accepts it. Give it to the publisher: without it, a topic that grew would get a key's next events in another
// partition, past the earlier ones, and a wrong cluster would get events that its consumers do not read. With zero
// partitions it only compares the cluster.
func (o *Outbox) Pin(ctx context.Context, cluster, topic string, partitions int) (int, error) {
	for range 3 { // another relay may write at the same moment: the next read sees it
		home, pinned, err := o.pin(ctx, cluster, topic, partitions)
		switch {
		case err != nil:
			return 0, &pg.Error{
				What: fmt.Sprintf("relay: pinning the partition count of topic %q", topic), Err: err,
			}
		case home != "" && cluster != "" && home != cluster:
			return 0, &outcome.Refusal{Topic: true, Err: &start.ForeignError{Pinned: home, Found: cluster}}
		case partitions == 0:
			return 0, nil
		case pinned > 0 && (home != "" || cluster == ""):
			return pinned, nil
		}
	}
	return 0, fmt.Errorf("relay: pinning the partition count of topic %q: other relays do so at this moment", topic)
}

// pin runs the statement. The role's transactions may be read-only by default.
func (o *Outbox) pin(ctx context.Context, cluster, topic string, partitions int) (home string, pinned int, err error) {
	err = pgx.BeginTxFunc(ctx, o.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite},
		func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sql.PinSettings); err != nil {
				return err
			}
			return tx.QueryRow(ctx, o.schema.Expand(sql.Pin), topic, partitions, cluster).Scan(&home, &pinned)
		})
	return home, pinned, err
}
