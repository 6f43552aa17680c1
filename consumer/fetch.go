package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/sleep"
)

// badAnswers is how many answers in a row may be undecodable before the partition halts. It is fetched on: a flipped
// byte, or a bad replica, does not last.
const badAnswers = 5

// fetch reads the partition into p.chunks. It returns nil when ctx ends, or an error if the partition cannot be read
// further.
func (p *partition) fetch(ctx context.Context) error {
	offset, err := p.resolve(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	dec := p.newDecoder()
	wait, bad, cut := newBackOff(), 0, int64(-1)
	var halted *Halt // by bad answers
	var open openTransaction
	for p.budget.wait(ctx, p.held.Load) {
		res, err := p.request(ctx, offset)
		before := cut
		cut = -1
		switch {
		case err == nil:
			p.c.outage.works(p.String())
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kafka.OffsetOutOfRange):
			next, lost := p.lost(ctx, offset)
			switch {
			case lost != nil:
				return lost
			case next == offset && ctx.Err() == nil:
				p.c.outage.fail(p.String(), fmt.Errorf("fetch: %w, although the log has the offset", err))
			}
			offset = next
			_ = sleep.For(ctx, wait.NextBackOff()) // a leader that lags may return this error more than once
			continue
		case errors.Is(err, kafka.UnknownTopicID), errors.Is(err, kafka.UnknownTopicOrPartition):
			if next, remade, lost := p.remade(ctx, offset); lost != nil {
				return lost
			} else if remade {
				offset = next
				continue
			}
			fallthrough
		default:
			p.c.outage.fail(p.String(), fmt.Errorf("fetch: %w", err))
			_ = sleep.For(ctx, wait.NextBackOff())
			continue
		}
		if res.highWatermark >= 0 {
			p.setEnd(res.highWatermark)
		}
		if at := res.diverged; at >= 0 {
			if cut = at; at == before {
				cut = -1
			}
			if offset, err = p.saidToBeCut(ctx, at, at == before, offset); err != nil {
				return err
			}
			continue
		}
		if offset, err = p.deliver(ctx, dec, res, offset); err != nil {
			switch bad++; bad {
			case 1:
				p.c.cfg.Logger.Warn("an answer of Kafka cannot be read: fetching again", "topic", p.Topic,
					"partition", p.ID, "offset", offset, "error", err)
			case badAnswers:
				halted = p.halt(offset, uuid.Nil, err, "look at the partition's replicas, and at what is between them "+
					"and this worker, which fetches again every few seconds")
			}
			dec = p.newDecoder()
			_ = sleep.For(ctx, wait.NextBackOff())
			continue
		}
		if halted != nil {
			p.goesOn(halted)
		}
		bad, halted = 0, nil
		wait.Reset()
		open.watch(p, offset, res)
		if res.throttle > 0 {
			_ = sleep.For(ctx, res.throttle)
		}
	}
	return nil
}

func (p *partition) newDecoder() *decoder {
	d := newDecoder(p.Topic, p.ID, p.c.cfg.IDHeader, p.c.cfg.MaxBatchBytes)
	if d.idHeader != "" {
		d.lacksID = p.lacksID
	}
	return d
}

// request sends one fetch request to the leader.
func (p *partition) request(ctx context.Context, offset int64) (*fetchResponse, error) {
	cfg := &p.c.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.FetchWait+2*netTimeout)
	defer cancel()
	return p.c.client.fetch(ctx, cfg, &fetchRequest{
		topic: p.Topic, log: p.reading.log, partition: p.ID, offset: offset,
		epoch: p.reading.group.epoch, maxBytes: int32(p.fetchBytes()),
		uncommitted: cfg.ReadUncommitted,
	})
}

// deliver decodes a response in pieces and sends each as a chunk to run. It returns the offset after the response.
func (p *partition) deliver(ctx context.Context, dec *decoder, res *fetchResponse, offset int64) (next int64,
	err error,
) {
	defer func() {
		// A panic in a decompression library must not end the process.
		if r := recover(); r != nil {
			next = offset
			err = fmt.Errorf("the records from offset %d on cannot be decoded: %w", offset, &panicError{value: r})
		}
	}()
	if err := inOrder(res.records, offset, res.highWatermark); err != nil {
		return offset, err
	}
	txns, from := &transactions{pending: res.aborted}, offset
	dec.after = p.reading.after
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
			offset, p.reading.group.epoch = c.next, c.epoch
			if n := len(c.events); n > 0 {
				p.reading.after = c.events[n-1].Position.Offset + 1
			}
		case <-ctx.Done():
			return offset, nil // run releases the memory
		}
	}
	if len(res.records) > 0 && offset == from {
		return offset, fmt.Errorf("the broker's answer for offset %d holds no whole record batch of it", offset)
	}
	return offset, nil
}

// resolve returns the offset to begin at. It has no meaning if ctx ended.
func (p *partition) resolve(ctx context.Context) (int64, error) {
	// Before the end of the log: the last owner may still decide events, which the log has by then.
	db, ok := p.handlerProgress(ctx)
	if !ok {
		return 0, nil
	}
	f, ok := p.facts(ctx)
	if ok {
		f.diverged, ok = p.divergence(ctx, f.fetch)
	}
	if !ok {
		return 0, nil
	}
	f.db = db
	if f.refused() {
		return 0, fmt.Errorf("consumer %q has decided nothing of topic %s, which consumer %q of the same program "+
			"reads: under a new name every event is applied again. If the name is a typo, correct it; if this is "+
			"another consumer, set consumer.Config.Start to StartEarliest or StartLatest", p.c.handler.Consumer(),
			p.Topic, f.db.Beside)
	}
	b := f.begin()
	p.reading.kept, p.reading.after = f.db.Kept, b.at
	return p.begin(ctx, f, b)
}

// begin reports a beginning, and passes it on to run after all earlier chunks.
func (p *partition) begin(ctx context.Context, f facts, b beginning) (int64, error) {
	if b.lost != nil {
		b.lost.Partition = p.Partition
		halts := b.undecided || p.c.cfg.OnLost == LostHalt && !b.goesOn
		if err := p.reportLost(*b.lost, b.lostWhy, f.first, f.end, halts); err != nil {
			return 0, err
		}
	}
	p.reading.group, p.reading.log, p.reading.decided = b.group, f.fetch, 0
	if b.sure {
		p.reading.decided = b.known
	}
	select {
	case p.chunks <- chunk{next: b.at, begins: &b}:
	case <-ctx.Done():
	}
	return b.at, nil
}

// lost reports an offset that Kafka does not have, and returns the offset to continue at.
func (p *partition) lost(ctx context.Context, offset int64) (int64, error) {
	f, ok := p.facts(ctx)
	if !ok || (f.first <= offset && offset <= f.end && !another(f.log, p.reading.group.log)) {
		p.reading.group.epoch = -1 // it may be what the leader does not know
		return offset, nil         // ctx ended, or the leader has the offset now
	}
	b := beginning{group: p.reading.group, next: -1, write: p.reading.kept}
	switch {
	case another(f.log, b.group.log), offset > f.end && f.log == uuid.Nil:
		f.remade(&b, offset)
	case offset > f.end:
		f.truncated(&b, -1, b.group.began, offset)
	default:
		b.at, b.commit = f.first, true
		if decided := p.reading.decided; decided < f.first {
			b.loses(whyUnread, max(offset, decided), f.first)
		} else {
			b.why, b.write, b.known, b.sure = whyRemoved, false, decided, true
		}
	}
	b.group.setLog(f.log)
	return p.begin(ctx, f, b)
}

// wasCut reports that the log was cut below the position and grew again, and returns the offset to continue at.
func (p *partition) wasCut(ctx context.Context, at, offset int64) (int64, error) {
	f, ok := p.facts(ctx)
	if !ok {
		return offset, nil
	}
	b := beginning{group: p.reading.group, next: -1, write: p.reading.kept}
	f.truncated(&b, at, b.group.began, offset)
	return p.begin(ctx, f, b)
}

// saidToBeCut handles an answer that says where the log was cut, and returns the offset to continue at. One answer may
// be false.
func (p *partition) saidToBeCut(ctx context.Context, at int64, again bool, offset int64) (int64, error) {
	switch {
	case at >= offset: // the record before offset is there, and is not of the epoch that was asked with
		p.c.outage.fail(p.String(), fmt.Errorf("fetch from offset %d: the leader says that the log was cut, at offset "+
			"%d", offset, at))
		p.reading.group.epoch = -1
		_ = sleep.For(ctx, newBackOff().NextBackOff())
		return offset, nil
	case again:
		return p.wasCut(ctx, at, offset)
	}
	return offset, nil
}

// remade looks whether the topic was made again. If so, it reports that and returns the offset to continue at.
func (p *partition) remade(ctx context.Context, offset int64) (next int64, remade bool, err error) {
	now, _, err := p.c.client.logID(ctx, &p.c.cfg, p.Topic)
	if err != nil || !another(now, p.reading.group.log) {
		return offset, false, nil // the brokers do not know it yet, or any more
	}
	next, err = p.lost(ctx, offset)
	return next, true, err
}

func (p *partition) reportLost(lost LostRange, why string, first, end int64, halts bool) error {
	p.c.cfg.Logger.Error("records are lost", "why", why, "topic", p.Topic, "partition", p.ID, "from", lost.From, "to",
		lost.To, "log_begins", first, "log_ends", end, "halts", halts)
	if p.c.cfg.Observer.Lost != nil {
		p.c.cfg.Observer.Lost(lost)
	}
	if !halts {
		return nil
	}
	do := "set its offset"
	if p.reading.kept && lost.From < first { // otherwise it would begin at the loss again
		do = "move its inbox and its offset past them (`relay inbox skip` does the first, and prints the second)"
	}
	return fmt.Errorf("%s: the log has offsets %d to %d; stop the group's workers, %s, and start them", why, first,
		end, do)
}

// newBackOff returns a backoff from 100 ms to 5 s, with jitter and without an end.
func newBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}
