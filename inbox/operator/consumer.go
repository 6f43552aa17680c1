package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/pgsession"
)

// Program is a program that runs a consumer, or did so within the last three minutes.
type Program struct {
	Name  string    `json:"name"`  // inbox.Config.Program
	Host  string    `json:"host"`  // one of its hosts
	Group string    `json:"group"` // its Kafka group; empty: none, or unknown
	Seen  time.Time `json:"seen"`  // when it last reported
	// Version is the version of the program; empty: unknown. If several versions run at once, it is one of them.
	Version string `json:"version"`
}

// ConsumerState is a consumer of the inbox and its progress.
type ConsumerState struct {
	Consumer string `json:"consumer"`
	// Dedup is the strategy: "id", "watermark" or "offset". A consumer that was moved from ids also checks ids until
	// IDsUntil; nil: it does not.
	Dedup     string        `json:"dedup"`
	IDsUntil  *time.Time    `json:"ids_until"`
	Floor     time.Time     `json:"floor"` // the day of its first start; ids of earlier days are history
	Window    time.Duration `json:"window"`
	StartedAt time.Time     `json:"started_at"` // its first start
	SeenAt    time.Time     `json:"seen_at"`    // its last start
	// RetiredAt is when the consumer was retired: its window no longer counts. nil: it is not retired.
	RetiredAt *time.Time `json:"retired_at"`
	// Programs are the programs that run the consumer. Several programs take events from each other.
	Programs []Program `json:"programs"`
	// ReportedAt is when a program last reported that it runs the consumer; nil: none has. Each reports every 20 s.
	ReportedAt *time.Time `json:"reported_at"`
	// Starts is how often a worker has started within five minutes on the host with the most starts, StartsOn. More
	// than the processes of that host: something ends them.
	Starts   int    `json:"starts"`
	StartsOn string `json:"starts_on"`
	// Beside is another consumer of the same program that read before this one first started, if this one has read
	// nothing: a worker refuses to begin a topic of both, unless consumer.Config.Start is set. Empty: there is none.
	Beside string `json:"beside"`
	// Partitions are the partitions that have a row in inbox_progress.
	Partitions []PartitionState `json:"partitions"`
}

// PartitionState is the progress of one partition as stored by the inbox: at an assignment, at a halt, and every ten
// seconds while the partition is handled.
type PartitionState struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// From is the first offset that is not known to be decided. To is the end of the range that was in progress at the
	// last assignment. From reaches To when all of that range is decided.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Attempts is the number of counted runs of the event at From during which the process died.
	Attempts int `json:"attempts"`
	// HaltedAt is when the partition halted; nil: it is not halted. Code and Error give the cause.
	HaltedAt *time.Time `json:"halted_at"`
	Code     string     `json:"code"`
	Error    string     `json:"error"`
	// TryingAt is since when the event at From, or a later event of its batch, has been failing and retried after long
	// pauses; nil: no event is. Trying is the last error, with the event, its offset and its attempts where an
	// effect fails. [Operator.Resume] retries at once.
	TryingAt *time.Time `json:"trying_at"`
	Trying   string     `json:"trying"`
	// EffectAt is when an effect was last committed; nil: unknown. It may lag by ten seconds and does not include
	// released events.
	EffectAt *time.Time `json:"effect_at"`
	// Unaccounted is how many offsets between the consumer's beginning and From are neither those of decided events nor
	// without a record. It is 0 unless something passed events without deciding them: a bug, or a wrapper of the
	// Handler that leaves events out.
	Unaccounted int64 `json:"unaccounted"`
	// Lost says when within the last seven days the consumer went on without records that Kafka had no longer, and why.
	// Empty: it did not.
	Lost string `json:"lost"`
	// Unmoved is how long this state has not changed, by the database's clock. It also grows when a partition has no
	// new events.
	Unmoved time.Duration `json:"unmoved"`
	// Batch is the transaction that now handles events of the partition; nil: none is open.
	Batch *Batch `json:"batch"`
}

// Batch is an open transaction of a worker.
type Batch struct {
	// For is how long it has been open; -1: the role may not see that (pg_read_all_stats).
	For time.Duration `json:"for"`
	// By is the session: its application_name, its address, and whether it waits. Empty: hidden too.
	By string `json:"by"`
}

// Consumers lists the consumers of the schema by name, or only the operator's own consumer.
func (o *Operator) Consumers(ctx context.Context) ([]ConsumerState, error) {
	list, err := consumers(ctx, o.db, o.prefix, o.consumer)
	if err != nil {
		return nil, fmt.Errorf("inbox: listing the consumers: %w", pgsession.Advise(err))
	}
	return list, nil
}

// consumers reads a consumer and its partitions; an empty name reads all consumers.
func consumers(ctx context.Context, db *pgxpool.Pool, prefix, consumer string) ([]ConsumerState, error) {
	at := map[string]int{}
	list, err := audit.Read(ctx, db, func(row pgx.CollectableRow) (c ConsumerState, err error) {
		var window int
		err = row.Scan(&c.Consumer, &c.Floor, &window, &c.StartedAt, &c.SeenAt, &c.Dedup, &c.IDsUntil, &c.RetiredAt,
			&c.Programs, &c.ReportedAt, &c.Starts, &c.StartsOn, &c.Beside)
		c.Window = time.Duration(window) * 24 * time.Hour
		at[c.Consumer] = len(at)
		return c, err
	}, pgschema.Expand(sql.ConsumerList, prefix), consumer)
	if err != nil {
		return nil, err
	}
	type of struct {
		consumer string
		PartitionState
	}
	partitions, err := audit.Read(ctx, db, func(row pgx.CollectableRow) (p of, err error) {
		var unmoved float64
		var batch *float64
		var by string
		err = row.Scan(&p.consumer, &p.Topic, &p.Partition, &p.From, &p.To, &p.Attempts, &p.HaltedAt, &p.Code, &p.Error,
			&p.TryingAt, &p.Trying, &p.EffectAt, &p.Unaccounted, &p.Lost, &unmoved, &batch, &by)
		p.Error = strings.TrimPrefix(p.Error, p.Code+": ") // the error of outcome.Terminal begins with its code
		if batch != nil {
			p.Batch = &Batch{For: time.Duration(max(*batch, 0) * float64(time.Second)), By: by}
			if *batch == -1 {
				p.Batch.For = -1
			}
		}
		p.Unmoved = time.Duration(max(unmoved, 0) * float64(time.Second))
		return p, err
	}, pgschema.Expand(sql.ProgressList, prefix), consumer)
	for _, p := range partitions {
		if i, known := at[p.consumer]; known {
			list[i].Partitions = append(list[i].Partitions, p.PartitionState)
		}
	}
	return list, err
}

// Resume resumes a halted partition and resets its count of runs. Fix the cause first. Events of the partition that
// wait for their next attempt, including released events, run at once. The workers notice within seconds. It fails with
// ErrNotHalted.
func (o *Operator) Resume(ctx context.Context, topic string, partition int32, reason string) error {
	return o.ofOne(ctx, audit.ResumePartition, reason, func(c change) error {
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

// Retire marks a consumer as gone: days are then dropped by the windows of the other consumers. Stop its workers first.
// The consumer keeps its floor, its progress and its parked events, so it may start again under its name. It still
// knows the ids of the remaining days; older events are quarantined. Retire fails if the progress advanced within the
// last minute, or a program reported within the last two that it runs the consumer.
func (o *Operator) Retire(ctx context.Context, reason string) error {
	return o.ofOne(ctx, audit.RetireConsumer, reason, func(c change) error {
		retired, err := c.lockStopped(ctx)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("consumer %q never started: relay inbox consumers lists them", o.consumer)
		case err != nil:
			return err
		case retired:
			return fmt.Errorf("consumer %q is retired already", o.consumer)
		}
		if _, err := c.exec(ctx, sql.Retire, o.consumer); err != nil {
			return err
		}
		return c.audit(ctx, "", "", "", map[string]any{})
	})
}

// lockStopped locks the row of a consumer. It fails if the consumer runs, or may.
func (c change) lockStopped(ctx context.Context) (retired bool, err error) {
	var runs bool
	err = c.query(ctx, sql.LockConsumer, c.o.consumer).Scan(&retired, &runs)
	if err == nil && runs {
		err = fmt.Errorf("consumer %q has run within the last two minutes: stop its workers first", c.o.consumer)
	}
	return retired, err
}

// SkipTo skips the records of a partition between the inbox's progress and an offset, for a record that halts the
// partition and can be neither decided nor parked. It advances the progress and returns the previous offset. The skip
// is kept in inbox_audit: what a worker reads of the skipped offsets later is a duplicate, wherever the group's offset
// is, while the topic is not made again and its log not cut. Stop the workers first: those that run go on from where
// they are, and do not look. Setting the group's offset in Kafka to the same offset before they start again spares them
// what was skipped; it is needed where the record cannot even be read, and where the topic's id is not known. SkipTo
// does not ask Kafka where the log ends. It fails if nothing of the partition was decided, if the progress is already
// at or past the offset, if it moved within the last minute, or if a program reported within the last two that it runs
// the consumer.
func (o *Operator) SkipTo(ctx context.Context, topic string, partition int32, offset int64, reason string) (from int64,
	err error,
) {
	err = o.ofOne(ctx, audit.SkipRecords, reason, func(c change) error {
		if _, err := c.skipsFrom(ctx, topic, partition, offset); err != nil {
			return err
		}
		var log string
		var began *time.Time
		if err := c.query(ctx, sql.SkipTo, o.consumer, topic, partition, offset).Scan(&from, &log, &began); err != nil {
			return err
		}
		detail := map[string]any{"partition": partition, "from": from, "to": offset}
		if log != "" && began != nil {
			detail["log"], detail["began_at"] = log, began.UTC()
		}
		return c.audit(ctx, "", topic, "", detail)
	})
	return from, err
}

var errOnlyLooked = errors.New("nothing was changed")

// MaySkipTo returns the error with which SkipTo would fail, without changing anything.
func (o *Operator) MaySkipTo(ctx context.Context, topic string, partition int32, offset int64) error {
	err := o.ofOne(ctx, audit.SkipRecords, "only to look", func(c change) error {
		_, err := c.skipsFrom(ctx, topic, partition, offset)
		return cmp.Or(err, errOnlyLooked)
	})
	if errors.Is(err, errOnlyLooked) {
		return nil
	}
	return err
}

// skipsFrom returns where a skip to an offset begins. It locks the consumer.
func (c change) skipsFrom(ctx context.Context, topic string, partition int32, offset int64) (from int64, err error) {
	_, never := c.lockStopped(ctx)
	if never != nil && !errors.Is(never, pgx.ErrNoRows) {
		return 0, never
	}
	err = c.query(ctx, sql.SkipFrom, c.o.consumer, topic, partition).Scan(&from)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && never != nil:
		return 0, fmt.Errorf("consumer %q never started: relay inbox consumers lists them", c.o.consumer)
	case errors.Is(err, pgx.ErrNoRows):
		return 0, fmt.Errorf("consumer %q has handled nothing of %s-%d yet, so there is nothing to skip: relay inbox "+
			"consumers shows its partitions", c.o.consumer, topic, partition)
	case err == nil && from >= offset:
		return 0, fmt.Errorf("consumer %q is at offset %d of %s-%d already: what is before offset %d is handled or "+
			"skipped", c.o.consumer, from, topic, partition, offset)
	}
	return from, err
}

// LastGroup returns the Kafka group of the programs that ran the consumer within the last day; empty: unknown, or
// several.
func (o *Operator) LastGroup(ctx context.Context) (group string, err error) {
	err = o.db.QueryRow(ctx, o.q(sql.LastGroup), o.consumer).Scan(&group)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("inbox: asking for the group of consumer %q: %w", o.consumer, pgsession.Advise(err))
	}
	return group, nil
}
