package operator

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// BehindError reports that the log has numbers which the outbox has not given out: its database is older than the log,
// because it was restored from a backup, or because another one has taken over from it. A relay would give the same
// numbers to other events, and consumers in watermark mode would take those for repetitions and drop them. Consumers by
// id lose nothing.
type BehindError struct {
	Topic     string // where the first such event was found
	Lane      int16
	Epoch     string // of that event
	Newer     bool   // that numbering is newer than the outbox's own
	Seen      int64  // its number
	Reserved  int64  // the highest number that the outbox has reserved in that lane
	Partition int32
	Offset    int64
}

// Error names the regression, and the remedy.
func (e *BehindError) Error() string {
	if e.Newer {
		return fmt.Sprintf("relay: the outbox has been succeeded: %s/%d holds number %d of lane %d at offset %d in "+
			"numbering %s, which is newer than the outbox's own. "+
			"Either another server publishes for it since a failover, and this is the old primary: then nothing may "+
			"publish from here, see docs/failover.md. "+
			"Or this database was restored from a backup: then run `relay fence --reason ...`, which begins a newer "+
			"numbering, and read docs/restore.md first",
			e.Topic, e.Partition, e.Seen, e.Lane, e.Offset, e.Epoch)
	}
	return fmt.Sprintf("relay: the outbox is older than what it has published: %s/%d holds number %d of lane %d at "+
		"offset %d (numbering %s), "+
		"and the outbox has given out %d at most. Its database was restored from a backup: run `relay fence --reason "+
		"...`, which begins a new numbering, "+
		"and read docs/restore.md before anything is published", e.Topic, e.Partition, e.Seen, e.Lane, e.Offset,
		e.Epoch, e.Reserved)
}

// CheckNumbers compares events that were read back from the log (the last ones of each partition, as consumer.Tail
// returns them) with the numbering of the outbox. It returns a [*BehindError] if one of them has a number that this
// outbox has not given out yet. Events of other outboxes and of earlier incarnations are no evidence. A lane without a
// given event cannot be judged: pass a few hundred of each partition.
func CheckNumbers(ctx context.Context, db *pgxpool.Pool, schema string, published []event.Event) error {
	in, err := sql.For(schema)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	rows, err := db.Query(ctx, in.Expand(sql.Numbering))
	if err != nil {
		return fmt.Errorf("relay: reading the numbering: %w", err)
	}
	reserved := map[int16]int64{}
	var lane int16
	var highest int64
	var outbox string
	var incarnation int64
	if _, err := pgx.ForEachRow(rows, []any{&lane, &highest, &outbox, &incarnation}, func() error {
		reserved[lane] = highest
		return nil
	}); err != nil {
		return fmt.Errorf("relay: reading the numbering: %w", err)
	}
	for i := range published {
		p := &published[i].Position
		id, number, ok := strings.Cut(p.Epoch, ".")
		theirs, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || id != outbox || theirs < incarnation {
			continue
		}
		if most, known := reserved[p.Lane]; known && (theirs > incarnation || p.Seq > most) {
			return &BehindError{
				Topic: published[i].Topic, Lane: p.Lane, Epoch: p.Epoch, Newer: theirs > incarnation, Seen: p.Seq,
				Reserved: most, Partition: p.Partition, Offset: p.Offset,
			}
		}
	}
	return nil
}

// PinnedTopics returns the topics that the outbox has published to.
func PinnedTopics(ctx context.Context, db *pgxpool.Pool, schema string) ([]string, error) {
	in, err := sql.For(schema)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	topics, err := audit.Read(ctx, db, pgx.RowTo[string], in.Expand(sql.Pinned))
	if err != nil {
		return nil, fmt.Errorf("relay: reading the topics: %w", err)
	}
	return topics, nil
}
