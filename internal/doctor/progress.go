package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox/operator"
)

// progress compares the consumers' progress in the database with the ends of the logs. It needs no group's name, and a
// group that is ahead of the database hides nothing.
func (f *findings) progress(ctx context.Context, conn Kafka, consumers []operator.ConsumerDiagnosis) {
	if conn == nil {
		return
	}
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	for _, c := range consumers {
		if len(c.Partitions) == 0 {
			continue
		}
		if l, err := lagging(ctx, client, c); err != nil {
			f.failedAtKafka("progress "+c.Consumer, err)
		} else {
			f.lag(c.Consumer, l)
		}
	}
}

// lag is the lag of a consumer.
type lag struct {
	looked  int                     // partitions with an answer of Kafka
	late    int64                   // records that are older than waitsLong and not decided
	left    bool                    // no worker has reported for three minutes
	stuck   []string                // partitions where nothing moves
	open    bool                    // an open transaction holds some of them
	trying  []string                // other partitions, where an event is tried again
	tried   operator.PartitionState // one of all partitions with such an event
	unknown []string                // partitions with old records that have no row
	wrong   []error                 // topics and partitions without an answer
}

func (f *findings) lag(consumer string, l lag) {
	check := "progress " + consumer
	for _, err := range l.wrong {
		if g, ok := errors.AsType[*goneError](err); ok {
			f.add(Warn, check, err.Error(), "The consumer has read it. Nothing of it can be read any more: what it "+
				"had not read, if anything, is gone.",
				g.advice("consumer_name = '"+consumer+"' and "))
			continue
		}
		f.failedAtKafka(check, err)
	}
	switch {
	case l.late > 0:
		f.late(check, consumer, l)
	case len(l.unknown) == 0 && l.looked > 0:
		f.ok(check, "no record older than a minute waits in %d partitions", l.looked)
	}
	if len(l.unknown) > 0 {
		f.add(Fail, check, "the database does not know "+strings.Join(l.unknown, ", "),
			"No worker has begun these partitions of a topic that the consumer reads, or their rows were deleted. "+
				"Their events wait.",
			"Start its workers, or look at their logs: a worker that gets a partition makes its row at once.")
	}
}

// late says why records wait, as far as the database knows, and what to do.
func (f *findings) late(check, consumer string, l lag) {
	severity, found := Fail, "nothing has been decided for a minute in "+strings.Join(l.stuck, ", ")
	if len(l.stuck) == 0 {
		severity, found = Warn, fmt.Sprintf("%d records older than a minute are not decided", l.late)
	}
	if len(l.trying) > 0 {
		found += "; not decided either: " + strings.Join(l.trying, ", ")
	}
	switch {
	case l.left:
		f.add(Fail, check, found, "No worker runs, or none reaches its database: no program of the consumer has "+
			"reported for three minutes.", "Start its workers, or look at their logs.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case l.tried.TryingAt != nil:
		f.add(severity, check, found, "Later events of its partition wait for it.",
			"Repair what the error names. The worker tries again within two minutes, or at once after this command.")
		f.runWhy("inbox", "resume", "--consumer="+consumer, "--topic="+l.tried.Topic,
			"--partition="+fmt.Sprint(l.tried.Partition))
	case l.tried.Attempts > 0:
		f.add(severity, check, found, "A worker died while an event ran. The event runs again, alone, and later ones "+
			"wait for it.", "Find out why the workers die. After inbox.Config.CrashAttempts (10) counted runs the "+
			"event is parked.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case len(l.stuck) > 0:
		next := "The workers' logs say which."
		if l.open {
			next = "A transaction ends when its producer commits or aborts it, or with its transaction.timeout.ms; " +
				"kafka-transactions.sh find-hanging and abort end one that stays. Otherwise: the workers' logs."
		}
		f.add(severity, check, found, "Events wait there, and no effect is committed: no worker runs, it does not "+
			"reach its database, or the effect fails or hangs.", next)
		f.run("inbox", "consumers", "--consumer="+consumer)
	default:
		f.add(severity, check, found, "Its workers go on, and are late.",
			"Look again in a minute. When it does not shrink: more workers, or larger batches; docs/scaling.md")
	}
}

// lagging compares partitions with their logs. Other findings name halted ones.
func lagging(ctx context.Context, client *kafka.Client, c operator.ConsumerDiagnosis) (l lag, err error) {
	l.left = len(c.Programs) == 0
	before := time.Now().Add(-waitsLong)
	logs, wrong, err := readLogs(ctx, client, c.Partitions, kafka.FirstOffsetOf, kafka.LastOffsetOf,
		func(partition int) kafka.OffsetRequest { return kafka.TimeOffsetOf(partition, before) })
	if err != nil {
		return l, err
	}
	l.wrong = wrong
	var held []operator.PartitionState
	known := map[place]bool{}
	for _, p := range c.Partitions {
		at := place{p.Topic, int(p.Partition)}
		log, ok := logs[at]
		if !ok {
			continue
		}
		l.looked++
		known[at] = true
		until := old(log)
		if p.HaltedAt != nil || until <= p.From {
			continue
		}
		l.late += until - p.From
		if tried(p) && l.tried.TryingAt == nil {
			l.tried = p
		}
		if p.Unmoved > waitsLong || tried(p) {
			held = append(held, p)
		}
	}
	l.sayHeld(held, logs, stable(ctx, client, held))
	for at, log := range logs {
		if n := old(log) - log.FirstOffset; n > 0 && !known[at] {
			l.unknown = append(l.unknown, fmt.Sprintf("%v (%d records older than a minute)", at, n))
		}
	}
	slices.Sort(l.unknown)
	return l, nil
}

// tried tells whether the event at which a partition is has failed, or had its process die: each try makes the row
// look moved.
func tried(p operator.PartitionState) bool { return p.TryingAt != nil || p.Attempts > 0 }

func (l *lag) sayHeld(held []operator.PartitionState, logs, stable map[place]kafka.PartitionOffsets) {
	for _, p := range held {
		at, also := place{p.Topic, int(p.Partition)}, ""
		switch {
		case p.TryingAt == nil:
		case l.left:
			also = ", an effect has failed: " + p.Trying
		default:
			also = ", an effect fails and is tried again: " + p.Trying
		}
		end := logs[at].LastOffset
		if to, ok := stable[at]; ok && 0 <= to.LastOffset && to.LastOffset <= p.From && p.From < end {
			also += ", an open Kafka transaction holds it"
			l.open = true
		}
		list := &l.stuck
		if p.Unmoved <= waitsLong {
			list = &l.trying
		}
		*list = append(*list, fmt.Sprintf("%v (at %d of %d for %v, counted runs: %d%s)", at, p.From, end,
			p.Unmoved.Round(time.Second), p.Attempts, also))
	}
}

// stable asks where the first open transaction of each partition begins. Without an answer that is unknown.
func stable(ctx context.Context, client *kafka.Client, partitions []operator.PartitionState) (
	found map[place]kafka.PartitionOffsets,
) {
	if len(partitions) == 0 {
		return nil
	}
	list := map[string][]kafka.OffsetRequest{}
	for _, p := range partitions {
		list[p.Topic] = append(list[p.Topic], kafka.LastOffsetOf(int(p.Partition)))
	}
	found, _ = offsets(ctx, client, list, kafka.ReadCommitted)
	return found
}

// old returns the end of the records that are older than waitsLong.
func old(log kafka.PartitionOffsets) int64 {
	for offset := range log.Offsets {
		if offset >= 0 {
			return offset
		}
	}
	return log.LastOffset // no newer record
}

// Ends returns the ends of partitions' logs, in their order. An unknown end is -1, and the error says why; the others
// are valid all the same.
func Ends(ctx context.Context, conn Kafka, partitions []operator.PartitionState) ([]int64, error) {
	client, closeIdle := conn.Client(10 * time.Second)
	defer closeIdle()
	logs, wrong, err := readLogs(ctx, client, partitions, kafka.LastOffsetOf)
	ends := make([]int64, len(partitions))
	for i, p := range partitions {
		ends[i] = -1
		if log, ok := logs[place{p.Topic, int(p.Partition)}]; ok {
			ends[i] = log.LastOffset
		}
	}
	for i, one := range wrong {
		if g, ok := errors.AsType[*goneError](one); ok {
			wrong[i] = fmt.Errorf("%w: %s", one, g.advice(""))
		}
	}
	return ends, errors.Join(append(wrong, err)...)
}

// MaySkip returns an error unless the log of a partition reaches up to an offset.
func MaySkip(ctx context.Context, conn Kafka, topic string, partition int32, to int64) error {
	ends, err := Ends(ctx, conn, []operator.PartitionState{{Topic: topic, Partition: partition}})
	switch {
	case err != nil:
		return fmt.Errorf("where %s/%d ends is not known: %w", topic, partition, err)
	case to > ends[0]:
		return fmt.Errorf("%s/%d ends at offset %d: what comes until %d was never written, and would not be handled",
			topic, partition, ends[0], to)
	}
	return nil
}

// place is a partition, or a topic with the partition -1.
type place struct {
	topic     string
	partition int
}

func (p place) String() string {
	if p.partition < 0 {
		return "topic " + p.topic
	}
	return fmt.Sprintf("%s/%d", p.topic, p.partition)
}

// goneError is a topic or a partition that the database knows and Kafka lacks.
type goneError struct{ place }

func (g *goneError) Error() string { return g.String() + " does not exist any more" }

// advice says what to do; of is a condition on the rows.
func (g *goneError) advice(of string) string {
	rows := fmt.Sprintf("%stopic = '%s'", of, g.topic)
	if g.partition >= 0 {
		rows += fmt.Sprintf(" and partition = %d", g.partition)
	}
	return "Records that it held behind the progress in its rows are gone without effect. If it was deleted by " +
		"mistake, create it again. If no worker reads it any more, delete its rows: delete from inbox_progress " +
		"where " + rows
}

// readLogs asks for offsets of all partitions of the topics of partitions. wrong lists those without an answer, and
// why.
func readLogs(ctx context.Context, client *kafka.Client, partitions []operator.PartitionState,
	asks ...func(partition int) kafka.OffsetRequest,
) (found map[place]kafka.PartitionOffsets, wrong []error, err error) {
	sizes := map[string]int{}
	for _, p := range partitions {
		sizes[p.Topic] = -1 // unknown
	}
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: slices.Sorted(maps.Keys(sizes))})
	if err != nil || len(sizes) == 0 {
		return nil, nil, err
	}
	list := map[string][]kafka.OffsetRequest{}
	for _, t := range meta.Topics {
		switch at := (place{t.Name, -1}); {
		case errors.Is(t.Error, kafka.UnknownTopicOrPartition):
			wrong = append(wrong, &goneError{at})
			continue
		case t.Error != nil:
			wrong = append(wrong, fmt.Errorf("%v: %w", at, t.Error))
			continue
		}
		sizes[t.Name] = len(t.Partitions)
		for _, p := range t.Partitions {
			if p.Error != nil || p.Leader.Host == "" { // it would fail the request for all
				wrong = append(wrong, fmt.Errorf("%v: %w", place{t.Name, p.ID}, kafka.LeaderNotAvailable))
				continue
			}
			for _, ask := range asks {
				list[t.Name] = append(list[t.Name], ask(p.ID))
			}
		}
	}
	vanished := map[place]bool{}
	for _, p := range partitions {
		at := place{p.Topic, int(p.Partition)}
		if n := sizes[p.Topic]; n >= 0 && at.partition >= n && !vanished[at] {
			vanished[at] = true
			wrong = append(wrong, &goneError{at})
		}
	}
	if len(list) == 0 {
		return nil, wrong, nil
	}
	found, err = offsets(ctx, client, list, kafka.ReadUncommitted)
	for at, p := range found {
		if p.Error != nil {
			wrong, err = append(wrong, fmt.Errorf("%v: %w", at, p.Error)), nil
			delete(found, at)
		}
	}
	return found, wrong, err
}

// offsets asks for offsets of partitions.
func offsets(ctx context.Context, client *kafka.Client, topics map[string][]kafka.OffsetRequest,
	level kafka.IsolationLevel,
) (map[place]kafka.PartitionOffsets, error) {
	res, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: topics, IsolationLevel: level})
	if err != nil {
		return nil, err
	}
	var errs []error
	found := map[place]kafka.PartitionOffsets{}
	for topic, partitions := range res.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				errs = append(errs, fmt.Errorf("%s/%d: %w", topic, p.Partition, p.Error))
			}
			found[place{topic, p.Partition}] = p
		}
	}
	return found, errors.Join(errs...)
}
