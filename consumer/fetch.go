package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
)

// fetch reads the partition into p.chunks. It returns nil when ctx ends, or an error if the partition cannot be read
// further.
func (p *partition) fetch(ctx context.Context) error {
	offset, err := p.resolve(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	dec := newDecoder(p.Topic, p.ID, p.c.cfg.IDHeader, p.c.cfg.MaxBatchBytes)
	wait := newBackOff()
	for p.budget.wait(ctx, p.held.Load) {
		res, err := p.request(ctx, offset)
		switch {
		case err == nil:
			p.c.outage.works(p.String())
			wait.Reset()
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kafka.OffsetOutOfRange):
			if offset, err = p.lost(ctx, offset); err != nil {
				return err
			}
			_ = sleep.For(ctx, wait.NextBackOff()) // a leader that lags may return this error more than once
			continue
		default:
			p.c.outage.fail(p.String(), fmt.Errorf("fetch: %w", err))
			_ = sleep.For(ctx, wait.NextBackOff())
			continue
		}
		p.setEnd(res.highWatermark)
		if offset, err = p.deliver(ctx, dec, res, offset); err != nil {
			return err
		}
	}
	return nil
}

// request sends one fetch request to the leader.
func (p *partition) request(ctx context.Context, offset int64) (*fetchResponse, error) {
	cfg := &p.c.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.FetchWait+2*netTimeout)
	defer cancel()
	return p.c.client.fetch(ctx, cfg, &fetchRequest{
		topic: p.Topic, partition: p.ID, offset: offset, maxBytes: int32(p.fetchBytes()),
		uncommitted: cfg.ReadUncommitted,
	})
}

// deliver decodes a response in pieces and sends each as a chunk to run. It returns the offset after the response.
func (p *partition) deliver(ctx context.Context, dec *decoder, res *fetchResponse, offset int64) (_ int64, err error) {
	defer func() {
		// A panic in a decompression library must not end the process.
		if r := recover(); r != nil {
			err = fmt.Errorf("the records from offset %d on cannot be decoded: %w", offset, &panicError{value: r})
		}
	}()
	txns, from := &transactions{pending: res.aborted}, offset
	for rest := res.records; len(rest) > 0; {
		var c chunk
		if c, rest, err = dec.next(rest, offset, p.fetchBytes(), txns); err != nil {
			return offset, err
		}
		if c.next == offset {
			continue
		}
		p.held.Add(c.bytes)
		p.budget.add(c.bytes)
		select {
		case p.chunks <- c:
			offset = c.next
		case <-ctx.Done():
			return offset, nil // run releases the memory
		}
	}
	if len(res.records) > 0 && offset == from {
		return offset, fmt.Errorf("the broker's answer for offset %d holds no whole record batch of it", offset)
	}
	return offset, nil
}

// resolve returns the offset to begin at. If the group has no offset, resolve commits the one that it chooses, so that
// a restart does not choose again. A group may lose its offsets: Kafka deletes those of a group that was inactive for
// long, and those of a deleted topic. StartLatest would then skip events that the handler's database has not decided,
// so resolve begins at the database's progress. The offset has no meaning if ctx ended.
func (p *partition) resolve(ctx context.Context) (int64, error) {
	if p.start >= 0 {
		at := p.compare(ctx, p.start)
		p.setPosition(at)
		return at, nil
	}
	first, end, ok := p.bounds(ctx)
	if !ok {
		return 0, nil
	}
	next, known, ok := p.handlerProgress(ctx)
	if !ok {
		return 0, nil
	}
	at := first
	switch {
	case known && next > end:
		if err := p.reportReplaced(next, first, end, p.c.cfg.OnLost == LostHalt); err != nil {
			return 0, err
		}
	case p.c.cfg.Start == StartLatest && known:
		at = next // if the log no longer has this offset, lost reports it
		p.c.cfg.Logger.Warn("the group has no offset (any more): beginning where the handler's database is, not at "+
			"the end of the log",
			"topic", p.Topic, "partition", p.ID, "from", at, "log_ends", end)
	case p.c.cfg.Start == StartLatest:
		at = end
	case known:
		p.expectRepeats(at, next)
	}
	if known || next != inbox.NoProgress {
		p.begins(at)
	}
	p.setPosition(at)
	p.commits.decided(p, at)
	return at, nil
}

// lost reports an offset that Kafka does not have, and returns the offset to continue at.
func (p *partition) lost(ctx context.Context, offset int64) (int64, error) {
	first, end, ok := p.bounds(ctx)
	if !ok || (first <= offset && offset <= end) {
		return offset, nil // ctx ended, or the leader has the offset now
	}
	halts := p.c.cfg.OnLost == LostHalt
	var err error
	if offset > end {
		err = p.reportReplaced(offset, first, end, halts)
	} else {
		err = p.reportLost(LostRange{Partition: p.Partition, From: offset, To: first},
			"retention removed records that were never read", first, end, halts)
	}
	if err != nil {
		return 0, err
	}
	// run has received all earlier chunks, so it decides this one after them.
	select {
	case p.chunks <- chunk{next: first}:
	case <-ctx.Done():
	}
	return first, nil
}

// reportReplaced reports that the log ends before the group's offset, or before the progress of the handler's database.
// The log is a different one or was truncated. Unread records of the old log are gone; their number is unknown.
func (p *partition) reportReplaced(known, first, end int64, halts bool) error {
	return p.reportLost(LostRange{Partition: p.Partition, From: known, To: known},
		"the log ends before the decided offset: the topic was recreated or truncated, and unread records of the "+
			"old log are gone", first, end, halts)
}

func (p *partition) reportLost(lost LostRange, why string, first, end int64, halts bool) error {
	p.c.cfg.Logger.Error("records are lost", "why", why, "topic", p.Topic, "partition", p.ID, "from", lost.From, "to",
		lost.To, "log_begins", first, "log_ends", end, "halts", halts)
	if p.c.cfg.Observer.Lost != nil {
		p.c.cfg.Observer.Lost(lost)
	}
	if halts {
		return fmt.Errorf("%s: the log has offsets %d to %d; set the group's offset to go on", why, first, end)
	}
	return nil
}

// bounds queries the first offset and the end of the log until it gets an answer. It returns false if ctx ended.
func (p *partition) bounds(ctx context.Context) (first, end int64, ok bool) {
	ok = retry(ctx, func() bool {
		var err error
		switch first, end, err = p.listOffsets(ctx); {
		case err == nil:
			p.setEnd(end)
			p.c.outage.works(p.String())
		case ctx.Err() == nil:
			p.c.outage.fail(p.String(), fmt.Errorf("list offsets: %w", err))
		}
		return err == nil
	})
	return first, end, ok
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

// newBackOff returns a backoff from 100 ms to 5 s, with jitter and without an end.
func newBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}
