package consumer

import (
	"math/bits"
	"strings"
	"sync"

	"github.com/effectonce/effectonce/event"
)

// noIDs counts, by topic, the records that lack an id although Config.IDHeader names where it is.
type noIDs struct {
	sync.Mutex
	of map[string]uint64
}

// lacksID reports whether the record has no id of its own, and a header that may have been meant. Its event has the id
// of its place in the log.
func lacksID(e *event.Event, rec *event.Record, idHeader string) (lacks bool, like string) {
	// A UUIDv5 is few producers' own, and a hash of the record's place only here.
	if e.ID.Version() != 5 || e.ID != event.RecordID(rec.Topic, rec.Partition, rec.Offset, rec.Time) {
		return false, ""
	}
	for _, h := range rec.Headers {
		if h.Key != idHeader && strings.EqualFold(h.Key, idHeader) {
			like = h.Key
		}
	}
	return true, like
}

// lacksID says that a record lacks its id: the first one of each topic, and then ever more rarely.
func (p *partition) lacksID(offset int64, like string) {
	no := &p.c.noIDs
	no.Lock()
	if no.of == nil {
		no.of = map[string]uint64{}
	}
	no.of[p.Topic]++
	n := no.of[p.Topic]
	no.Unlock()
	if bits.OnesCount64(n) != 1 || bits.TrailingZeros64(n)%4 != 0 {
		return // no power of 16
	}
	attrs := []any{"header", p.c.cfg.IDHeader, "topic", p.Topic, "partition", p.ID, "offset", offset, "records", n}
	if like != "" {
		attrs = append(attrs, "it_has", like)
	}
	p.c.cfg.Logger.Warn("records have no id in Config.IDHeader, nor in ce_id: each goes by its place in the log, and "+
		"one that its producer sends twice is applied twice", attrs...)
}
