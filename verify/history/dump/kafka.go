package dump

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
)

// readTopic reads all records of a topic up to its current end.
func (s Site) readTopic(ctx context.Context, topic string, d *history.Dump) error {
	ranges, err := s.ranges(ctx, topic)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		d.Ends = append(d.Ends, history.End(r))
	}
	from := len(d.Records)
	texts := intern{}
	err = kafkatest.Each(ctx, s.Brokers, ranges, func(r *kgo.Record) {
		d.Records = append(d.Records, record(r, texts))
	})
	slices.SortFunc(d.Records[from:], func(a, b history.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return err
}

// intern deduplicates strings that occur in many records.
type intern map[string]string

func (i intern) of(b []byte) string {
	if s, ok := i[string(b)]; ok {
		return s
	}
	s := string(b)
	i[s] = s
	return s
}

func record(r *kgo.Record, texts intern) history.Record {
	out := history.Record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, ID: idOf(r), Key: texts.of(r.Key),
		Digest: history.Digest(r.Value),
	}
	for _, h := range r.Headers {
		switch h.Key {
		case event.HeaderTenant:
			out.Tenant = texts.of(h.Value)
		case event.HeaderEpoch:
			out.Epoch = texts.of(h.Value)
		case event.HeaderLane:
			n, _ := strconv.ParseInt(string(h.Value), 10, 16)
			out.Lane = int16(n)
		case event.HeaderLaneSeq:
			out.Seq, _ = strconv.ParseInt(string(h.Value), 10, 64)
		case event.HeaderMaybe:
			out.MaybePublished = true
		case tables.HeaderVersion:
			out.Version, _ = strconv.ParseInt(string(h.Value), 10, 64)
		}
	}
	return out
}

// idOf returns the id of a record in an inbox.
func idOf(r *kgo.Record) uuid.UUID {
	rec := event.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Time: r.Timestamp}
	for _, h := range r.Headers {
		rec.Headers = append(rec.Headers, event.Header{Key: h.Key, Value: h.Value})
	}
	return event.Decode(&rec, "").ID
}

// ranges returns what each partition of a topic holds.
func (s Site) ranges(ctx context.Context, topic string) ([]kafkatest.Range, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return kafkatest.Ranges(ctx, client, topic)
}

// committed returns the committed offsets of a group, -1 for none. A new cluster has no coordinator for a moment.
func (s Site) committed(ctx context.Context, c Consumer) (list []history.Offset, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		list, err = s.askCommitted(ctx, c)
		if !errors.Is(err, kerr.CoordinatorNotAvailable) || sleep.For(ctx, 100*time.Millisecond) != nil {
			return list, err
		}
	}
}

func (s Site) askCommitted(ctx context.Context, c Consumer) ([]history.Offset, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var out []history.Offset
	for _, topic := range c.Topics {
		ranges, err := kafkatest.Ranges(ctx, client, topic)
		if err != nil {
			return nil, err
		}
		committed, err := kafkatest.Committed(ctx, client, c.Group, ranges)
		if err != nil {
			return nil, err
		}
		for _, r := range ranges {
			out = append(out, history.Offset{
				Consumer: c.Name, Topic: topic, Partition: r.Partition, Committed: committed[r.Partition],
			})
		}
	}
	return out, nil
}

// CaughtUp reports whether every group has committed the ends of its topics: whether a Read would find no Lag.
func (s Site) CaughtUp(ctx context.Context) (bool, error) {
	for _, c := range s.Consumers {
		committed, err := s.committed(ctx, c)
		if err != nil {
			return false, fmt.Errorf("dump: offsets of group %s: %w", c.Group, err)
		}
		for _, topic := range c.Topics {
			ranges, err := s.ranges(ctx, topic)
			if err != nil {
				return false, fmt.Errorf("dump: ends of topic %s: %w", topic, err)
			}
			for _, o := range committed {
				if o.Topic != topic {
					continue
				}
				if r := ranges[o.Partition]; r.First < r.End && o.Committed < r.End {
					return false, nil
				}
			}
		}
	}
	return true, nil
}
