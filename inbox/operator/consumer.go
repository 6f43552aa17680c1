package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Program runs a consumer, or has done so within the last three minutes.
type Program struct {
	Name  string    `json:"name"`  // inbox.Config.Program
	Host  string    `json:"host"`  // one of those that it runs on
	Group string    `json:"group"` // its Kafka group; empty: it has none, or has not told
	Seen  time.Time `json:"seen"`  // when it last said so
}

// ConsumerState is a consumer of the inbox and how far it is.
type ConsumerState struct {
	Consumer string `json:"consumer"`
	// Dedup is how it tells repeats: "id", "watermark" or "offset". Until IDsUntil it looks at ids as well, for it was
	// moved from them; nil: it does not.
	Dedup     string        `json:"dedup"`
	IDsUntil  *time.Time    `json:"ids_until"`
	Floor     time.Time     `json:"floor"` // the day of its first start: ids of earlier days are history
	Window    time.Duration `json:"window"`
	StartedAt time.Time     `json:"started_at"` // for the first time
	SeenAt    time.Time     `json:"seen_at"`    // its last start
	// RetiredAt is since when its window does not count; nil: it does.
	RetiredAt *time.Time `json:"retired_at"`
	// Programs are those that run it. More than one take events from each other.
	Programs []Program `json:"programs"`
	// Partitions are those with a range that was under way at some time.
	Partitions []PartitionState `json:"partitions"`
}

// PartitionState is the progress of one partition, as far as the inbox writes it down: at an assignment, at a halt, and
// every ten seconds while it works.
type PartitionState struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// From is the first offset that is not known to be decided. To is the end of the range that was under way at the
	// last assignment; From has reached it when all of that was decided.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Attempts are the counted runs of the event at From that ended with their process.
	Attempts int `json:"attempts"`
	// HaltedAt is since when the partition waits for a person; nil: it does not. Code and Error say why.
	HaltedAt *time.Time `json:"halted_at"`
	Code     string     `json:"code"`
	Error    string     `json:"error"`
	// TryingAt is since when the event at From, or one behind it in its batch, fails and runs again after long pauses;
	// nil: none does. Trying is its last error. [Operator.Resume] has it run at once.
	TryingAt *time.Time `json:"trying_at"`
	Trying   string     `json:"trying"`
	// EffectAt is when an effect was last committed; it may be ten seconds behind, and released events are not in it.
	// nil: not known.
	EffectAt *time.Time `json:"effect_at"`
	// Unmoved is for how long nothing of this has changed, by the database's clock. A partition that is read to its end
	// rests.
	Unmoved time.Duration `json:"unmoved"`
}

// Consumers lists the consumers of the schema, or the operator's own, by name.
func (o *Operator) Consumers(ctx context.Context) ([]ConsumerState, error) {
	list, err := consumers(ctx, o.db, o.prefix, o.consumer)
	if err != nil {
		return nil, fmt.Errorf("inbox: listing the consumers: %w", err)
	}
	return list, nil
}

// consumers reads a consumer and its partitions, or with an empty name all.
func consumers(ctx context.Context, db *pgxpool.Pool, prefix, consumer string) ([]ConsumerState, error) {
	rows, err := db.Query(ctx, pgschema.Expand(sql.ConsumerList, prefix), consumer)
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ConsumerState, err error) {
		var window int
		err = row.Scan(&c.Consumer, &c.Floor, &window, &c.StartedAt, &c.SeenAt, &c.Dedup, &c.IDsUntil, &c.RetiredAt,
			&c.Programs)
		c.Window = time.Duration(window) * 24 * time.Hour
		at[c.Consumer] = len(at)
		return c, err
	})
	if err == nil {
		rows, err = db.Query(ctx, pgschema.Expand(sql.ProgressList, prefix), consumer)
	}
	if err != nil {
		return nil, err
	}
	var name string
	var p PartitionState
	var unmoved float64
	_, err = pgx.ForEachRow(rows, []any{
		&name, &p.Topic, &p.Partition, &p.From, &p.To, &p.Attempts, &p.HaltedAt,
		&p.Code, &p.Error, &p.TryingAt, &p.Trying, &p.EffectAt, &unmoved,
	}, func() error {
		if i, known := at[name]; known {
			p.Unmoved = time.Duration(max(unmoved, 0) * float64(time.Second))
			list[i].Partitions = append(list[i].Partitions, p)
		}
		return nil
	})
	return list, err
}

// Resume lets a halted partition go on, with its count of runs at zero, and has what fails and waits for its next
// attempt run at once, released events of the partition included: mend the cause first. Its worker notices by itself
// within seconds. It fails with ErrNotHalted.
func (o *Operator) Resume(ctx context.Context, topic string, partition int32, reason string) error {
	return o.ofOne(ctx, "resume partition", reason, func(c change) error {
		tried, err := c.exec(ctx, sql.TryReleased, o.consumer, topic, partition)
		if err != nil {
			return err
		}
		resumed, err := c.exec(ctx, sql.Resume, o.consumer, topic, partition)
		switch {
		case err != nil:
			return err
		case tried+resumed == 0:
			return fmt.Errorf("%s-%d: %w", topic, partition, ErrNotHalted)
		}
		return c.audit(ctx, "", topic, "", map[string]any{"partition": partition})
	})
}

// Retire says that a consumer is gone: from now on days are dropped by the windows of the others. Stop its workers
// first. It keeps its floor, its account and what it has parked, so that it may come back under its name: it still
// knows what it applied, and what is older than the days that are left is quarantined. It fails when the account has
// moved within the last minute.
func (o *Operator) Retire(ctx context.Context, reason string) error {
	return o.ofOne(ctx, "retire consumer", reason, func(c change) error {
		var retired, runs bool
		err := c.query(ctx, sql.LockConsumer, o.consumer).Scan(&retired, &runs)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("consumer %q never started: relay inbox consumers lists them", o.consumer)
		case err != nil:
			return err
		case retired:
			return fmt.Errorf("consumer %q is retired already", o.consumer)
		case runs:
			return fmt.Errorf("consumer %q has decided something within the last minute: stop its workers first",
				o.consumer)
		}
		if _, err := c.exec(ctx, sql.Retire, o.consumer); err != nil {
			return err
		}
		return c.audit(ctx, "", "", "", map[string]any{})
	})
}

// SkipTo gives up what a partition holds between the account of the inbox and an offset: a record that halts it and can
// be neither decided nor parked. It moves the account alone, and returns where that was. The group's offset is Kafka's:
// stop the workers first, and set it to the same offset before they start again. A group's offset that is moved without
// the account goes back to it. It fails when nothing of the partition was decided yet, or more than that offset.
func (o *Operator) SkipTo(ctx context.Context, topic string, partition int32, offset int64, reason string) (from int64,
	err error,
) {
	err = o.ofOne(ctx, "skip records", reason, func(c change) error {
		err := c.query(ctx, sql.SkipTo, o.consumer, topic, partition, offset).Scan(&from)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%s-%d has no account before offset %d: relay inbox consumers shows where it is", topic,
				partition, offset)
		}
		if err != nil {
			return err
		}
		return c.audit(ctx, "", topic, "", map[string]any{"partition": partition, "from": from, "to": offset})
	})
	return from, err
}
