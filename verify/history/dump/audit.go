package dump

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/verify/history"
)

// Auditor checks during a run that no committed offset has passed an undecided event (I7). At the end such an event may
// have been applied. Calls must not overlap.
type Auditor struct {
	site Site
	w    *history.Writer
	next map[place]int64 // first offset that was not checked
}

type place struct {
	consumer, topic string
	partition       int32
}

// NewAuditor makes an Auditor that writes to its own history.
func NewAuditor(w *history.Writer, site Site) *Auditor {
	return &Auditor{site: site, w: w, next: map[place]int64{}}
}

// Once reads the committed offsets of every consumer, and then checks that all records below them that were not checked
// before are decided. After an error the next call checks the same records again.
func (a *Auditor) Once(ctx context.Context) error {
	for _, c := range a.site.Consumers {
		committed, err := a.site.committed(ctx, c)
		if err != nil {
			return fmt.Errorf("dump: audit %s: offsets: %w", c.Name, err)
		}
		audit := history.Audit{Consumer: c.Name, Group: c.Group}
		for _, topic := range c.Topics {
			parts, err := a.topic(ctx, c, topic, committed)
			if err != nil {
				return fmt.Errorf("dump: audit %s: %w", c.Name, err)
			}
			audit.Partitions = append(audit.Partitions, parts...)
		}
		if _, err := a.w.Write(history.Entry{Kind: history.KindAudit, Audit: &audit}); err != nil {
			return err
		}
		for _, p := range audit.Partitions {
			at := place{c.Name, p.Topic, p.Partition}
			a.next[at] = max(a.next[at], p.Committed)
		}
	}
	return nil
}

func (a *Auditor) topic(ctx context.Context, c Consumer, topic string, committed []history.Offset) (
	[]history.AuditPartition, error,
) {
	held, err := a.site.ranges(ctx, topic)
	if err != nil {
		return nil, err
	}
	first := map[int32]int64{}
	for _, e := range held {
		first[e.Partition] = e.First
	}
	var ranges []kafkatest.Range
	var parts []history.AuditPartition
	for _, o := range committed {
		if o.Topic != topic {
			continue
		}
		parts = append(parts, history.AuditPartition{Topic: topic, Partition: o.Partition, Committed: o.Committed})
		from := max(a.next[place{c.Name, topic, o.Partition}], first[o.Partition])
		ranges = append(ranges, kafkatest.Range{Topic: topic, Partition: o.Partition, First: from, End: o.Committed})
	}
	found := map[int32][]history.AuditRecord{}
	var ids []uuid.UUID
	if err := kafkatest.Each(ctx, a.site.Brokers, ranges, func(r *kgo.Record) {
		id := idOf(r)
		ids = append(ids, id)
		found[r.Partition] = append(found[r.Partition], history.AuditRecord{Offset: r.Offset, ID: id})
	}); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return parts, nil
	}
	open, err := a.site.undecided(ctx, c.Name, ids)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		p := &parts[i]
		p.Checked = int64(len(found[p.Partition]))
		for _, r := range found[p.Partition] {
			if open[r.ID] {
				p.Undecided = append(p.Undecided, r)
			}
		}
	}
	return parts, nil
}
