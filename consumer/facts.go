package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// facts returns what Kafka and the group know. ok is false if ctx ended.
func (p *partition) facts(ctx context.Context) (f facts, ok bool) {
	ok = retry(ctx, func() bool {
		f = facts{
			id: p.ID, group: p.reading.group, start: p.c.cfg.Start, absent: p.c.wasAbsent(p.Topic), diverged: -1,
		}
		switch err := p.ask(ctx, &f); {
		case err == nil:
			p.setEnd(f.end)
			p.c.outage.works(p.String())
			return true
		case ctx.Err() == nil:
			p.c.outage.fail(p.String(), err)
		}
		return false
	})
	return f, ok
}

// ask queries the log's id before its bounds: if it is another one by then, it has no fetch.
func (p *partition) ask(ctx context.Context, f *facts) error {
	if err := p.identify(ctx, f); err != nil {
		return err
	}
	if err := p.agreedOffsets(ctx, f); err != nil {
		return fmt.Errorf("list offsets: %w", err)
	}
	return p.confirm(ctx, f)
}

// divergence returns where the log was cut below the group's offset and grew again; -1: it was not, or that is not
// known. ok is false if ctx ended.
func (p *partition) divergence(ctx context.Context, log uuid.UUID) (at int64, ok bool) {
	at = -1
	group := p.reading.group
	if group.committed < 0 || group.epoch < 0 || group.log != log {
		return at, true
	}
	ok = retry(ctx, func() bool {
		res, err := p.probe(ctx, log, group.committed, group.epoch)
		before := at
		at = -1
		switch {
		case err == nil:
			at = res.diverged
			if at >= 0 && at != before { // one answer may be false
				return false
			}
		case errors.Is(err, kafka.OffsetOutOfRange), errors.Is(err, kafka.UnknownTopicID): // the fetch reports it
		case ctx.Err() == nil:
			p.c.outage.fail(p.String(), fmt.Errorf("fetch: %w", err))
			return false
		}
		p.c.outage.works(p.String())
		return true
	})
	return at, ok
}

// identify queries the id of the topic's log.
func (p *partition) identify(ctx context.Context, f *facts) error {
	log, fetched, err := p.c.client.logID(ctx, &p.c.cfg, p.Topic)
	if err == nil && log != f.group.log { // one answer may be false
		var again uuid.UUID
		if again, fetched, err = p.c.client.logID(ctx, &p.c.cfg, p.Topic); err == nil && again != log {
			err = fmt.Errorf("the id of topic %s: two answers differ", p.Topic)
		}
	}
	if f.log = log; fetched {
		f.fetch = log
	}
	return err
}

// agreedOffsets asks until two answers are equal, three times at most. No checksum covers an answer, and a consumer
// that begins at a false offset skips records. Both offsets only grow, so of three answers in order the second is true,
// even if one of the three is false.
func (p *partition) agreedOffsets(ctx context.Context, f *facts) (err error) {
	var firsts, ends []int64
	for range 3 {
		if f.first, f.end, err = p.listOffsets(ctx); err != nil {
			return err
		}
		if n := len(ends); n > 0 && firsts[n-1] == f.first && ends[n-1] == f.end {
			return nil
		}
		firsts, ends = append(firsts, f.first), append(ends, f.end)
	}
	if !slices.IsSorted(firsts) || !slices.IsSorted(ends) {
		return fmt.Errorf("the answers differ: the log begins at %d and ends at %d", firsts, ends)
	}
	f.first, f.end = firsts[1], ends[1]
	return nil
}

// confirm compares the bounds with what a fetch from the end tells: records are not skipped, or said to be lost, unless
// answers to two kinds of requests are false. Brokers that do not fetch by topic ids need not tell.
func (p *partition) confirm(ctx context.Context, f *facts) error {
	if f.fetch == uuid.Nil {
		return nil
	}
	res, err := p.probe(ctx, f.fetch, f.end, -1)
	if err != nil {
		return fmt.Errorf("fetch from the end, offset %d: %w", f.end, err)
	}
	if res.first >= 0 && res.first != f.first {
		return fmt.Errorf("the log begins at %d by its offsets, and at %d by a fetch", f.first, res.first)
	}
	return nil
}

// probe fetches as little as Kafka allows. It waits while the broker throttles the client, and then asks again.
func (p *partition) probe(ctx context.Context, log uuid.UUID, offset int64, epoch int32) (*fetchResponse, error) {
	for {
		asking, cancel := context.WithTimeout(ctx, 2*netTimeout)
		res, err := p.c.client.fetch(asking, &p.c.cfg, &fetchRequest{
			topic: p.Topic, log: log, partition: p.ID, offset: offset, epoch: epoch, maxBytes: 1,
			maxWait: time.Millisecond,
		})
		cancel()
		if err != nil || res.of != nil {
			return res, err
		}
		if err = sleep.For(ctx, res.throttle); err != nil {
			return nil, err
		}
	}
}

func (p *partition) listOffsets(ctx context.Context) (first, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*netTimeout)
	defer cancel()
	id := int(p.ID)
	res, err := p.c.client.kafka().ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{p.Topic: {kafka.FirstOffsetOf(id), kafka.LastOffsetOf(id)}},
	})
	if err != nil {
		return 0, 0, err
	}
	for _, o := range res.Topics[p.Topic] {
		if o.Partition == id {
			return o.FirstOffset, o.LastOffset, o.Error
		}
	}
	return 0, 0, fmt.Errorf("the answer lacks partition %d", id)
}
