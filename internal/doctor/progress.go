package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
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
		check := "progress " + c.Consumer
		switch {
		case f.silent != nil: // the next request would wait as long
			f.unknown(check, seeKafka)
		case len(c.Partitions) > 0:
			if l, err := lagging(ctx, client, c); err != nil {
				f.failedAtKafka(check, err)
			} else {
				f.lag(c.Consumer, l)
			}
		}
	}
}

// lateAfter is the age at which records are said to wait though their consumer moves. With the time between two looks
// that is within a minute.
const lateAfter = 40 * time.Second

// soon is how long a partition may decide nothing while records wait. The stored progress lags by up to 12 s.
const soon = 15 * time.Second

// slowest is how long a batch may run: inbox.Config.EffectTimeout, by default.
const slowest = 5 * time.Minute

// lag is what waits for a consumer.
type lag struct {
	of      int                    // partitions of the consumer
	left    string                 // that no worker runs it; empty: one does
	starts  string                 // that a worker starts again and again; empty: none does
	looked  int                    // partitions with an answer of Kafka
	waits   map[cause]*waitingList // by what they wait for
	unknown []string               // partitions with old records that have no row
	unread  []string               // partitions whose log begins behind the progress
	shorter []string               // partitions whose log ends before the progress
	ahead   []string               // partitions with records of unknown age
	wrong   []error                // topics and partitions without an answer
}

// cause is why records wait. why is the error of an effect.
type cause struct {
	kind causeKind
	why  string
}

type causeKind int

// The kinds of causes, the most certain first.
const (
	kills  causeKind = iota // an event ends the process of each worker
	fails                   // an effect fails, and is tried again
	starts                  // a worker starts again and again
	leaves                  // no worker runs
	opened                  // an open Kafka transaction
	runs                    // a batch is running
	loses                   // batches run and end, and decide nothing
	stands                  // nothing of that
	late                    // the progress moves
)

// waitingList has the partitions in which records wait for one cause.
type waitingList struct {
	list  []operator.PartitionState
	where []string      // each with its offsets
	since time.Duration // the longest time
	long  bool          // a partition waits for longer than waitsLong
	all   int64         // the records that are older than lateAfter
	most  int64         // those of the partition with the most of them, at
	at    place
	from  int64  // where that one stands
	key   string // which key most of its next records have; empty: not known
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
	if len(l.unread) > 0 {
		f.add(Fail, check, "Kafka deleted records unread: "+some(l.unread, l.of), "The topic's retention is shorter "+
			"than the consumer was late, or somebody deleted them. Their effects are missing.", "`relay replay` "+
			"publishes again what the archive has; otherwise correct the business tables. The workers go on at the "+
			"next record, and this ends then. Raise the topic's retention.ms or retention.bytes.")
	}
	if len(l.shorter) > 0 {
		f.add(Warn, check, "the log ends before the progress: "+some(l.shorter, l.of), "The topic was deleted and "+
			"made again, or an election cut its end: undecided records may be gone, and those that it has now wait.",
			"Start the workers, or look at their logs: they begin such a log anew, or halt if they go by offsets.")
	}
	if len(l.waits)+len(l.unknown)+len(l.unread)+len(l.shorter)+len(l.ahead) == 0 && l.looked > 0 {
		f.ok(check, "no record older than %v waits in %d partitions", lateAfter, l.looked)
	}
	for _, c := range slices.SortedFunc(maps.Keys(l.waits), func(a, b cause) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.why, b.why))
	}) {
		f.waiting(consumer, l.of, c, l.waits[c])
	}
	if len(l.ahead) > 0 {
		f.unknown(check, "a record's time is ahead of this machine's clock, and hides how long those behind it wait: "+
			some(l.ahead, l.of))
	}
	if len(l.unknown) > 0 {
		f.add(Fail, check, "the database does not know "+strings.Join(l.unknown, ", "),
			"No worker has begun these partitions of a topic that the consumer reads, or their rows were deleted. "+
				"Their events wait.",
			"Start its workers, or look at their logs: a worker that gets a partition makes its row at once.")
	}
}

// some names partitions, of so many.
func some(list []string, of int) string {
	if len(list) > 3 {
		return fmt.Sprintf("%d of %d partitions, the first is %s", len(list), of, list[0])
	}
	return strings.Join(list, ", ")
}

// waiting says for what records wait, and what to do.
func (f *findings) waiting(consumer string, of int, c cause, w *waitingList) {
	check := "progress " + consumer
	severity := Warn
	if w.long {
		severity = Fail
	}
	one, since, where := w.list[0], w.since.Round(time.Second), some(w.where, of)
	switch c.kind {
	case kills:
		found := fmt.Sprintf("an event ends the process of its worker: %s, counted runs: %d", where, one.Attempts)
		if c.why != "" {
			found += "; " + c.why
		}
		f.add(severity, check, found,
			"The event runs again, alone, and later ones wait for it. More workers do not help.",
			"The worker's exit code and its last lines say why. After inbox.Config.CrashAttempts (10) counted runs "+
				"the event is parked. To give it up before that, stop the workers, and:")
		f.runWhy("inbox", "skip", "--consumer="+consumer, "--topic="+one.Topic,
			"--partition="+fmt.Sprint(one.Partition), "--to="+fmt.Sprint(one.From+1))
	case fails:
		f.add(severity, check, fmt.Sprintf("the effect fails: %s: %s, since %v", c.why, where, since),
			"It is tried again. Later events of its partition wait for it.",
			"Repair what the error names. The worker tries again within two minutes, or at once in "+
				"a partition after this command.")
		f.runWhy("inbox", "resume", "--consumer="+consumer, "--topic="+one.Topic,
			"--partition="+fmt.Sprint(one.Partition))
	case starts:
		f.add(severity, check, fmt.Sprintf("%s: %s", c.why, where), "Unless so many run there, something ends them, "+
			"and little is decided in between. More workers do not help.", "The exit code and the last lines say "+
			"why: an event whose effect ends the process, too little memory, a probe.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case leaves:
		f.add(Fail, check, fmt.Sprintf("%s: %s", c.why, where), "Its events wait in Kafka, for the "+
			"topic's retention.", "Start its workers, or look at their logs: they do not run, or do not reach the "+
			"database.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case opened:
		f.add(severity, check, "an open Kafka transaction holds records: "+where, "Events behind it wait.",
			"It ends when its producer commits or aborts it, or with its transaction.timeout.ms; "+
				"kafka-transactions.sh find-hanging and abort end one that stays.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case runs:
		if severity = Warn; w.since > slowest {
			severity = Fail
		}
		f.add(severity, check, fmt.Sprintf("a batch has been running for %v%s: %s", since, c.why, where), "The effect "+
			"is slow, or hangs. Events behind it wait; more workers do not help.", "See what the session does, or "+
			"what the effect calls: beside its tx it may wait for its own locks. inbox.Config.EffectTimeout (5 min) "+
			"ends a batch whose effect observes its context.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case loses:
		f.add(severity, check, fmt.Sprintf("batches run and end, and nothing is decided (%s): %s, unmoved for %v",
			c.why, where, since), "They lose against other sessions, most likely. Events behind them wait; more "+
			"workers do not help.", "See in pg_stat_activity what a session does that they wait for, and end that. "+
			"The worker's log says why a batch begins again.")
		f.run("inbox", "consumers", "--consumer="+consumer)
	case stands:
		f.add(severity, check, fmt.Sprintf("nothing is decided, and no batch is running: %s, unmoved for %v", where,
			since), "No worker has these partitions, another member of its Kafka group has them (a console "+
			"consumer), or it does not reach Kafka or its database, or has no connection of its pool left.",
			"The workers' /healthz/moving, and their logs, say which. If they say ok, look for other members:")
		f.tool("kafka-consumer-groups.sh", "--describe", "--all-groups", "--members", "--verbose")
	case late:
		next := fmt.Sprintf("It is spread over %d partitions: while they are fewer, more workers help, and otherwise "+
			"larger batches; docs/scaling.md", len(w.list))
		found := fmt.Sprintf("%d records older than %v are not decided, %d %% of them in %v", w.all, lateAfter,
			100*w.most/w.all, w.at)
		if w.key != "" {
			found += ": " + w.key
		}
		if w.concentrated() {
			next = "More workers do not help: one decides a partition, in order. Look for a key or a tenant with " +
				"very many events, and how long an effect takes; larger batches; docs/scaling.md"
		}
		f.add(Warn, check, found, "Its workers go on, and are late.", next)
	}
}

// concentrated reports whether most of the records wait in one partition.
func (w *waitingList) concentrated() bool { return 2*w.most > w.all }

// lagging compares partitions with their logs. Other findings name halted ones.
func lagging(ctx context.Context, client *kafka.Client, c operator.ConsumerDiagnosis) (l lag, err error) {
	now := time.Now()
	logs, wrong, err := readLogs(ctx, client, c.Partitions, kafka.FirstOffsetOf, kafka.LastOffsetOf,
		func(partition int) kafka.OffsetRequest { return kafka.TimeOffsetOf(partition, now.Add(-lateAfter)) },
		func(partition int) kafka.OffsetRequest { return kafka.TimeOffsetOf(partition, now.Add(-soon)) })
	if err != nil {
		return l, err
	}
	l = lag{of: len(c.Partitions), left: left(c), starts: restarts(c), wrong: wrong, waits: map[cause]*waitingList{}}
	var waits, unsure []operator.PartitionState
	known := map[place]bool{}
	for _, p := range c.Partitions {
		at := place{p.Topic, int(p.Partition)}
		log, ok := logs[at]
		if !ok {
			continue
		}
		if p.HaltedAt == nil {
			l.looked++
		}
		known[at] = true
		if n := log.FirstOffset - p.From; n > 0 {
			if p.Unmoved > soon { // the stored progress lags
				l.unread = append(l.unread, fmt.Sprintf("%v (%d offsets, from %d)", at, n, p.From))
			}
			p.From = log.FirstOffset
		}
		if p.From > log.LastOffset && p.Unmoved > soon {
			l.shorter = append(l.shorter, fmt.Sprintf("%v (at %d of %d)", at, p.From, log.LastOffset))
			p.From = log.FirstOffset
		}
		switch _, aged := old(log); {
		case p.HaltedAt != nil || p.From >= log.LastOffset:
		case aged > p.From || p.Attempts > 1:
			waits = append(waits, p)
		case p.Unmoved > soon:
			unsure = append(unsure, p)
		}
	}
	// A record whose time is ahead of the clock hides how old those behind it are.
	ahead, err := ask(ctx, client, unsure, kafka.ReadUncommitted, func(partition int) kafka.OffsetRequest {
		return kafka.TimeOffsetOf(partition, now.Add(soon))
	})
	if err != nil {
		return l, err
	}
	for _, p := range unsure {
		at := place{p.Topic, int(p.Partition)}
		_, aged := old(logs[at])
		switch _, hides := ahead[at].Offsets[aged]; {
		case hides && (l.left != "" || p.TryingAt != nil):
			waits = append(waits, p)
		case hides:
			l.ahead = append(l.ahead, fmt.Sprintf("%v (at %d of %d)", at, p.From, logs[at].LastOffset))
		}
	}
	// Where the first open transaction of each partition begins. Without an answer that is unknown.
	ends, _ := ask(ctx, client, waits, kafka.ReadCommitted, kafka.LastOffsetOf)
	for _, p := range waits {
		at := place{p.Topic, int(p.Partition)}
		end, ok := ends[at]
		if !ok {
			end.LastOffset = -1 // unknown
		}
		l.add(p, logs[at], end.LastOffset)
	}
	for why, w := range l.waits {
		if why.kind == late && w.concentrated() {
			w.key = hotKey(ctx, client, w.at, w.from)
		}
	}
	for at, log := range logs {
		if older, _ := old(log); older > log.FirstOffset && !known[at] {
			l.unknown = append(l.unknown, fmt.Sprintf("%v (%d records older than %v)", at,
				older-log.FirstOffset, lateAfter))
		}
	}
	slices.Sort(l.unknown)
	return l, nil
}

// ofEvent is how a worker names the event whose effect fails; the doctor tells the same error of several events once.
var ofEvent = regexp.MustCompile(`^event \S+ at offset \d+, attempt \d+: `)

// effectError is the beginning of the error of an effect that is tried again. `relay inbox consumers` has all of it.
func effectError(p operator.PartitionState) string {
	const most = 300
	text := []rune(ofEvent.ReplaceAllString(p.Trying, ""))
	if len(text) > most {
		text = append(text[:most], '…')
	}
	return string(text)
}

// add adds a partition in which records wait to those with the same cause. stable is where the first open transaction
// begins.
func (l *lag) add(p operator.PartitionState, log kafka.PartitionOffsets, stable int64) {
	older, _ := old(log)
	since, why := p.Unmoved, cause{kind: stands}
	long := since > waitsLong && older > p.From
	switch {
	case p.Attempts > 1:
		why.kind, long = kills, p.Attempts > 2
	case l.left != "":
		why = cause{leaves, l.left}
		if p.TryingAt != nil {
			why.why += "; the effect has failed: " + effectError(p)
		}
	case p.TryingAt != nil:
		since, why = time.Since(*p.TryingAt), cause{fails, effectError(p)}
		long = since > waitsLong
		if p.Batch != nil && strings.Contains(p.Batch.By, "waiting for a lock") {
			why.why += " (now " + p.Batch.By + ")"
		}
	case p.Batch != nil && p.Batch.For < 0:
		why = cause{runs, " or less (grant pg_read_all_stats to this role)"}
	case p.Batch != nil && p.Batch.For > soon:
		since, why = p.Batch.For, cause{runs, " (" + p.Batch.By + ")"}
	case p.Batch != nil && p.Unmoved > waitsLong && older > p.From:
		why = cause{loses, p.Batch.By}
	case p.Batch != nil, p.Unmoved <= soon:
		why.kind = late
	case 0 <= stable && stable <= p.From && p.From < log.LastOffset:
		why.kind = opened
	}
	if why.kind == late && older <= p.From {
		return
	}
	if l.starts != "" && (why.kind == kills || why.kind == leaves || why.kind == stands || why.kind == late) {
		said := l.starts
		if why.kind == leaves {
			said += "; " + why.why
		}
		why = cause{min(why.kind, starts), said}
	}
	w := l.waits[why]
	if w == nil {
		w = &waitingList{}
		l.waits[why] = w
	}
	at, n := place{p.Topic, int(p.Partition)}, max(older-p.From, 0)
	if w.all += n; n > w.most {
		w.most, w.at, w.from = n, at, p.From
	}
	w.since, w.long = max(w.since, since), w.long || long
	w.list, w.where = append(w.list, p), append(w.where, fmt.Sprintf("%v (at %d of %d)", at, p.From, log.LastOffset))
}

// often is how many starts within five minutes are no deployment, on a host with fewer processes.
const often = 4

// restarts says that a worker starts again and again. Empty: none does.
func restarts(c operator.ConsumerDiagnosis) string {
	if c.Starts < often {
		return ""
	}
	return fmt.Sprintf("a worker on %s has started %d times within five minutes", c.StartsOn, c.Starts)
}

// gone is how long a consumer's programs, which report every 20 s, may be silent.
const gone = 45 * time.Second

// left says that no program has reported for so long that it runs the consumer, and none moves it. Empty: one does.
func left(c operator.ConsumerDiagnosis) string {
	moves := func(p operator.PartitionState) bool { return p.Unmoved < gone || p.Batch != nil }
	switch {
	case slices.ContainsFunc(c.Partitions, moves):
	case c.ReportedAt == nil:
		return "no worker runs it"
	case time.Since(*c.ReportedAt) > gone:
		ago := time.Since(*c.ReportedAt).Round(time.Second)
		if d := c.ReportedAt.Sub(c.SeenAt); 0 <= d && d < gone/3 { // a worker reports every 20 s
			return fmt.Sprintf("no worker runs it, or one without Inbox.Run: the last one reported at its start "+
				"only, %v ago", ago)
		}
		return fmt.Sprintf("no worker runs it, the last one left %v ago", ago)
	}
	return ""
}
