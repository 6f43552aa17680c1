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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
)

func (s Site) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, kgo.SeedBrokers(s.Brokers...))...)
}

// readTopic reads all records of a topic up to its current end.
func (s Site) readTopic(ctx context.Context, topic string, d *history.Dump) error {
	ends, err := s.ends(ctx, topic)
	if err != nil {
		return err
	}
	d.Ends = append(d.Ends, ends...)
	from := len(d.Records)
	texts := intern{}
	err = s.each(ctx, topic, ends, func(r *kgo.Record) { d.Records = append(d.Records, record(r, texts)) })
	slices.SortFunc(d.Records[from:], func(a, b history.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return err
}

// each calls do for the records of ranges of a topic's partitions, in order within a partition.
func (s Site) each(ctx context.Context, topic string, ranges []history.End, do func(*kgo.Record)) error {
	from, open := map[int32]kgo.Offset{}, map[int32]int64{}
	for _, e := range ranges {
		if e.First < e.End {
			from[e.Partition], open[e.Partition] = kgo.NewOffset().At(e.First), e.End
		}
	}
	if len(open) == 0 {
		return nil
	}
	client, err := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for len(open) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, ok := open[r.Partition]
			if ok && r.Offset < end && !r.Attrs.IsControl() {
				do(r)
			}
			if ok && r.Offset+1 >= end {
				delete(open, r.Partition)
			}
		})
	}
	return nil
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

// ends returns the first and the end offsets of a topic's partitions.
func (s Site) ends(ctx context.Context, topic string) ([]history.End, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	meta := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = &topic
	meta.Topics = append(meta.Topics, mt)
	found, err := meta.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	if len(found.Topics) != 1 {
		return nil, errNoTopic
	}
	if err := kerr.ErrorForCode(found.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	ends := make([]history.End, len(found.Topics[0].Partitions))
	for p := range ends {
		ends[p] = history.End{Topic: topic, Partition: int32(p)}
	}
	first, err := offsets(ctx, client, ends, -2)
	if err != nil {
		return nil, err
	}
	last, err := offsets(ctx, client, ends, -1)
	if err != nil {
		return nil, err
	}
	for i := range ends {
		ends[i].First, ends[i].End = first[ends[i].Partition], last[ends[i].Partition]
	}
	return ends, nil
}

// offsets returns the earliest (-2) or the end (-1) offset of partitions.
func offsets(ctx context.Context, client *kgo.Client, of []history.End, at int64) (map[int32]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	topic := kmsg.NewListOffsetsRequestTopic()
	for _, e := range of {
		topic.Topic = e.Topic
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = e.Partition, at, -1
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	out := map[int32]int64{}
	for _, shard := range client.RequestSharded(ctx, req) { // by leader
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("partition %d: %w", p.Partition, err)
				}
				out[p.Partition] = p.Offset
			}
		}
	}
	return out, nil
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
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	req := kmsg.NewPtrOffsetFetchRequest()
	group := kmsg.NewOffsetFetchRequestGroup()
	req.Group, group.Group = c.Group, c.Group
	for _, topic := range c.Topics {
		ends, err := s.ends(ctx, topic)
		if err != nil {
			return nil, err
		}
		old, one := kmsg.NewOffsetFetchRequestTopic(), kmsg.NewOffsetFetchRequestGroupTopic()
		old.Topic, one.Topic = topic, topic
		for _, e := range ends {
			old.Partitions, one.Partitions = append(old.Partitions, e.Partition), append(one.Partitions, e.Partition)
		}
		req.Topics, group.Topics = append(req.Topics, old), append(group.Topics, one)
	}
	req.Groups = append(req.Groups, group)
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(res.ErrorCode); err != nil {
		return nil, err
	}
	var out []history.Offset
	for _, g := range res.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
				}
				out = append(out, history.Offset{
					Consumer: c.Name, Topic: t.Topic, Partition: p.Partition,
					Committed: p.Offset,
				})
			}
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
			ends, err := s.ends(ctx, topic)
			if err != nil {
				return false, fmt.Errorf("dump: ends of topic %s: %w", topic, err)
			}
			for _, o := range committed {
				if e := o.Partition; o.Topic == topic && ends[e].First < ends[e].End && o.Committed < ends[e].End {
					return false, nil
				}
			}
		}
	}
	return true, nil
}
