package consumer

import (
	"log/slog"
	"time"
)

const (
	// openAfter is how long an open transaction may hold a partition before that is logged. By default Kafka ends one
	// whose producer has gone after a minute.
	openAfter = time.Minute
	// openEvery is how often it is logged again.
	openEvery = 5 * time.Minute
)

// openTransaction tells of another producer's transaction that stays open: the broker delivers no record after its
// first one, and nothing else says why.
type openTransaction struct {
	since time.Time // zero: none holds the partition
	said  time.Time
}

// watch looks at the answer to a fetch, after which the partition is at an offset.
func (o *openTransaction) watch(p *partition, offset int64, res *fetchResponse) {
	if res.highWatermark < 0 || p.c.cfg.ReadUncommitted {
		return // no answer about the partition, or one that does not wait
	}
	log := func() *slog.Logger { return p.c.cfg.Logger.With("topic", p.Topic, "partition", p.ID, "offset", offset) }
	held := len(res.records) == 0 && 0 <= res.stable && res.stable <= offset && offset < res.highWatermark
	switch now := time.Now(); {
	case held && o.since.IsZero():
		o.since = now
	case held && now.Sub(o.since) >= openAfter && now.Sub(o.said) >= openEvery:
		o.said = now
		log().Warn("an open Kafka transaction holds this partition: later records are delivered once its producer "+
			"commits or aborts it, or its transaction.timeout.ms is over; `kafka-transactions.sh find-hanging` and "+
			"`abort` end one that stays", "log_ends", res.highWatermark, "for", now.Sub(o.since).Round(time.Second))
	case !held:
		if !o.said.IsZero() {
			log().Info("no open transaction holds this partition any more")
		}
		*o = openTransaction{}
	}
}
