package operator

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// OutdatedError reports that the log has events which the outbox cannot have published: its database is older than the
// log, because it was restored from a backup, or because another one has taken over from it. A relay would publish
// events again, and perhaps give used numbers to others: consumers in watermark mode would apply the former twice, and
// drop the latter. Consumers by id lose and repeat nothing.
type OutdatedError struct {
	Topic     string // where the first such event was found
	Lane      int16
	Epoch     string // of that event
	Newer     bool   // that numbering is newer than the outbox's own
	First     bool   // the outbox knows of no event that it has published to the topic
	Seen      int64  // its number
	Reserved  int64  // the highest number that the outbox has reserved in that lane
	Partition int32
	Offset    int64

	// Published is the event's time in the log if it is later than Leased, the end of the last lease of any relay, by
	// more than ten minutes; otherwise zero. Leased is zero if there was none.
	Published, Leased time.Time
}

// leaseSlack is how much later than the end of the last lease an event may be in the log: its time may be that of the
// publisher's clock.
const leaseSlack = 10 * time.Minute

// Error names the regression, and the remedy.
func (e *OutdatedError) Error() string {
	if e.Newer {
		return fmt.Sprintf("relay: the outbox has been succeeded: %s/%d holds number %d of lane %d at offset %d in "+
			"numbering %s, which is newer than the outbox's own. "+
			"Either another server publishes for it since a failover, and this is the old primary: then nothing may "+
			"publish from here, see docs/failover.md. "+
			"Or this database was restored from a backup: then run `relay fence --reason ...`, which begins a newer "+
			"numbering, and read docs/restore.md first",
			e.Topic, e.Partition, e.Seen, e.Lane, e.Offset, e.Epoch)
	}
	if e.First {
		return fmt.Sprintf("relay: the outbox is older than what it has published: %s/%d holds number %d of lane %d "+
			"at offset %d (numbering %s), and the outbox has published nothing to that topic. Its database was "+
			"restored from a backup: run `relay fence --reason ...`, which begins a new numbering, and read "+
			"docs/restore.md before anything is published", e.Topic, e.Partition, e.Seen, e.Lane, e.Offset, e.Epoch)
	}
	if !e.Published.IsZero() {
		leased := "no relay of it has had a lease"
		if !e.Leased.IsZero() {
			leased = "the last lease of a relay of it ended at " + e.Leased.UTC().Format(time.RFC3339)
		}
		return fmt.Sprintf("relay: the outbox is older than what it has published: %s/%d holds an event of lane %d at "+
			"offset %d (numbering %s) that was published at %s, and %s. Its database was restored from a backup: run "+
			"`relay fence --reason ...`, which begins a new numbering, and read docs/restore.md before anything is "+
			"published. If it was not restored, a clock is wrong", e.Topic, e.Partition, e.Lane, e.Offset, e.Epoch,
			e.Published.UTC().Format(time.RFC3339), leased)
	}
	return fmt.Sprintf("relay: the outbox is older than what it has published: %s/%d holds number %d of lane %d at "+
		"offset %d (numbering %s), "+
		"and the outbox has given out %d at most. Its database was restored from a backup: run `relay fence --reason "+
		"...`, which begins a new numbering, "+
		"and read docs/restore.md before anything is published", e.Topic, e.Partition, e.Seen, e.Lane, e.Offset,
		e.Epoch, e.Reserved)
}

// CheckNumbers compares events that were read back from the log (the last ones of each partition, as consumer.Tail
// returns them) with the outbox. It returns an [*OutdatedError] if one of them has a number that this outbox has not
// given out yet, or was published when no relay of it had a lease. Events of other outboxes and of earlier
// incarnations are no evidence. A lane without a given event cannot be judged: pass a few hundred of each partition.
// own is how many of the events are this outbox's; of none, nothing is known.
func CheckNumbers(ctx context.Context, db *pgxpool.Pool, schema string, published []event.Event) (own int, err error) {
	in, err := sql.For(schema)
	if err != nil {
		return 0, fmt.Errorf("relay: %w", err)
	}
	rows, err := db.Query(ctx, in.Expand(sql.Numbering))
	if err != nil {
		return 0, fmt.Errorf("relay: reading the numbering: %w", err)
	}
	reserved := map[int16]int64{}
	var lane int16
	var highest int64
	var outbox string
	var incarnation int64
	var leased, now float64
	if _, err := pgx.ForEachRow(rows, []any{&lane, &highest, &outbox, &incarnation, &leased, &now}, func() error {
		reserved[lane] = highest
		return nil
	}); err != nil {
		return 0, fmt.Errorf("relay: reading the numbering: %w", err)
	}
	for i := range published {
		p := &published[i].Position
		theirs, ok := numbering(p.Epoch, outbox)
		if !ok {
			continue
		}
		if own++; theirs < incarnation {
			continue
		}
		if most, known := reserved[p.Lane]; known && (theirs > incarnation || p.Seq > most) {
			return own, &OutdatedError{
				Topic: published[i].Topic, Lane: p.Lane, Epoch: p.Epoch, Newer: theirs > incarnation, Seen: p.Seq,
				Reserved: most, Partition: p.Partition, Offset: p.Offset,
			}
		}
		// What is later than now tells of a wrong clock.
		at := float64(p.Timestamp.UnixMilli()) / 1000
		if !p.Timestamp.IsZero() && at > leased+leaseSlack.Seconds() && at < now+leaseSlack.Seconds() {
			e := &OutdatedError{
				Topic: published[i].Topic, Lane: p.Lane, Epoch: p.Epoch, Seen: p.Seq, Partition: p.Partition,
				Offset: p.Offset, Published: p.Timestamp,
			}
			if !math.IsInf(leased, 0) {
				e.Leased = time.UnixMilli(int64(leased * 1000))
			}
			return own, e
		}
	}
	return own, nil
}

// numbering returns the incarnation of an epoch of the outbox.
func numbering(epoch, outbox string) (incarnation int64, ok bool) {
	id, number, ok := strings.Cut(epoch, ".")
	incarnation, err := strconv.ParseInt(number, 10, 64)
	return incarnation, ok && err == nil && id == outbox
}

// CheckFirst is [CheckNumbers] for a topic that the outbox's relays, which pin topics ([relay.Outbox.Pin]), have not
// published to: then no event of its numbering may be there, whatever its number is. The events were read back before
// the topic is pinned; for a topic that is pinned by now they are no evidence.
func CheckFirst(ctx context.Context, db *pgxpool.Pool, schema, topic string, published []event.Event) error {
	in, err := sql.For(schema)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	var outbox string
	var incarnation int64
	var pinned bool
	if err := db.QueryRow(ctx, in.Expand(sql.FirstUse), topic).Scan(&outbox, &incarnation, &pinned); err != nil {
		return fmt.Errorf("relay: reading the numbering: %w", err)
	}
	for i := range published {
		p := &published[i].Position
		if theirs, ok := numbering(p.Epoch, outbox); ok && theirs >= incarnation && !pinned {
			return &OutdatedError{
				Topic: topic, Lane: p.Lane, Epoch: p.Epoch, Newer: theirs > incarnation, First: true, Seen: p.Seq,
				Partition: p.Partition, Offset: p.Offset,
			}
		}
	}
	return nil
}

// UnpinnedTopics returns topics that events wait for, and that the outbox has not published to: those of the first
// events of each lane.
func UnpinnedTopics(ctx context.Context, db *pgxpool.Pool, schema string) ([]string, error) {
	return topics(ctx, db, schema, sql.Unpinned)
}

// PinnedTopics returns the topics that the outbox has published to.
func PinnedTopics(ctx context.Context, db *pgxpool.Pool, schema string) ([]string, error) {
	return topics(ctx, db, schema, sql.Pinned)
}

func topics(ctx context.Context, db *pgxpool.Pool, schema, query string) ([]string, error) {
	in, err := sql.For(schema)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	list, err := audit.Read(ctx, db, pgx.RowTo[string], in.Expand(query))
	if err != nil {
		return nil, fmt.Errorf("relay: reading the topics: %w", err)
	}
	return list, nil
}
