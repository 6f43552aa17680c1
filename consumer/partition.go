package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/redact"
	"github.com/effectonce/effectonce/internal/sleep"
)

// partition reads one assigned partition until it is given up. One goroutine fetches and decodes one chunk ahead;
// another calls the handler.
type partition struct {
	Partition
	c        *Consumer
	budget   *budget
	commits  *committer
	released bool        // given up; guarded by commits.mu
	group    groupOffset // what the group knows; it is run's
	reading  struct {    // what fetch knows
		group groupOffset // of the log that is fetched
		log   uuid.UUID   // its id; zero: fetched by the topic's name
		kept  bool        // the handler keeps progress
		// What is below is decided in the handler's database, certainly of this log; 0: nothing is, as far as is known.
		decided int64
		after   int64 // the offset after the last event that was passed on, or the one at which the partition began
	}

	chunks   chan chunk
	fetchErr error        // the error that ended fetching; read after chunks is closed
	held     atomic.Int64 // bytes fetched and not yet released

	rest chunk // fetched, not yet passed to the handler

	// reread is the range that the group has committed and this generation reads again, because the handler's database
	// lags.
	reread ForgottenRange
	// decidedBefore is the handler's progress at the assignment if the group's offset was below it, otherwise 0.
	decidedBefore int64
	loggedDoubled bool // an applied event below decidedBefore was logged

	mu       sync.Mutex
	next     int64     // the first undecided offset; -1: not known yet
	high     int64     // the end of the log at the time seen; -1: not known yet
	seen     time.Time // when high was last read
	handling time.Time // when the running Handle began; zero: none runs
	halted   *Halt
}

// run handles the partition's events until work ends or the partition halts for good. Handlers run with the context
// handle, which may outlive work.
func (p *partition) run(work, handle context.Context) {
	p.c.handler.Assigned(p.Topic, p.ID)
	work, stop := context.WithCancel(work)
	var fetcher sync.WaitGroup
	fetcher.Go(func() {
		defer close(p.chunks)
		p.fetchErr = p.fetch(work)
	})
	defer func() {
		stop()
		fetcher.Wait()
		p.c.handler.Revoked(handle, p.Topic, p.ID)
		p.c.outage.forget(p.String())
		p.budget.release(p.held.Swap(0))
	}()
	for {
		batch, ok := p.gather(work)
		switch {
		case !ok && work.Err() == nil:
			p.halt(p.position(), uuid.Nil, p.fetchErr, "do what the error says")
			return
		case !ok, batch.begins != nil && !p.begins(work, batch.begins):
			return
		case batch.begins != nil:
			continue
		}
		for bytes := batch.bytes; ; batch.bytes = bytes {
			rest, done := p.decide(handle, batch)
			if done {
				break
			}
			if !p.resumed(work, rest) {
				return
			}
			batch = rest
		}
		p.held.Add(-batch.bytes)
		p.budget.release(batch.bytes)
	}
}

// decide passes a batch to the handler and records the decided head. If done is false, the partition has stopped before
// rest. An operator can resume it, unless rest is empty.
func (p *partition) decide(ctx context.Context, batch chunk) (rest chunk, done bool) {
	if batch.epoch >= 0 {
		p.group.epoch = batch.epoch
	}
	if len(batch.events) == 0 {
		p.passed(p.position(), batch.next)
		return chunk{}, true
	}
	began := time.Now()
	p.setHandling(began)
	outcomes, err := p.handle(ctx, batch.events)
	p.setHandling(time.Time{})
	n := decidedHead(outcomes, len(batch.events))
	p.countReread(batch.events, outcomes[:n])
	p.countRepeated(batch.events, outcomes[:n])
	if p.c.cfg.Observer.Handled != nil {
		p.c.cfg.Observer.Handled(HandledInfo{
			Partition: p.Partition, Events: len(batch.events), Outcomes: outcomes[:n], Took: time.Since(began),
		})
	}
	if n == len(batch.events) {
		p.passed(batch.events[n-1].Position.Offset+1, batch.next)
	} else if n > 0 {
		p.decided(batch.events[n-1].Position.Offset + 1)
	}
	switch {
	case n == len(batch.events) && err == nil:
		return chunk{}, true
	case ctx.Err() != nil, errors.Is(err, sleep.ErrStopping):
		return chunk{}, false // the partition is given up; its next owner continues here
	case isDatabaseChanged(err):
		// Later records are useless: the new generation begins at the database's progress.
		p.databaseChanged(err)
		return chunk{}, false
	case err == nil:
		err = errors.New("the handler returned no error and left the event undecided")
	}
	at := batch.events[min(n, len(batch.events)-1)]
	var halt *inbox.HaltError
	if errors.As(err, &halt) && halt.Event.ID != uuid.Nil {
		at = halt.Event
		rest = chunk{events: batch.events[n:], next: batch.next, epoch: batch.epoch}
	}
	p.halt(p.position(), at.ID, err, "fix the cause and let an operator resume the partition, or restart this worker")
	return rest, false
}

// resumed waits until an operator resumes the halted partition. It returns false if work ended, or if rest is empty.
func (p *partition) resumed(work context.Context, rest chunk) bool {
	if len(rest.events) == 0 {
		return false
	}
	for {
		_ = sleep.For(work, p.c.cfg.ResumeEvery)
		if work.Err() != nil {
			return false
		}
		// Another error is an outage of the handler's database. The handler reports it.
		ok, err := p.c.handler.Resumed(work, p.Topic, p.ID)
		if isDatabaseChanged(err) {
			p.databaseChanged(err)
			return false
		}
		if ok && err == nil {
			break
		}
	}
	p.goesOn(nil)
	return true
}

// goesOn ends a halt, if it is still the partition's; nil: whichever that is.
func (p *partition) goesOn(from *Halt) {
	p.mu.Lock()
	is := from == nil || p.halted == from
	if is {
		p.halted = nil
	}
	p.mu.Unlock()
	if !is {
		return
	}
	p.c.cfg.Logger.Info("partition resumed", "topic", p.Topic, "partition", p.ID, "offset", p.position())
	if p.c.cfg.Observer.Resumed != nil {
		p.c.cfg.Observer.Resumed(p.Partition)
	}
}

// decidedHead returns the number of outcomes before the first Undecided. A missing outcome is undecided.
func decidedHead(outcomes []inbox.Outcome, events int) int {
	for i, o := range outcomes[:min(len(outcomes), events)] {
		if o == inbox.Undecided {
			return i
		}
	}
	return min(len(outcomes), events)
}

// handle calls the handler and turns a panic into an error, and the end of its goroutine too: the partition's would end
// without a word. After either, no event of the batch counts as decided.
func (p *partition) handle(ctx context.Context, events []event.Event) (outcomes []inbox.Outcome, err error) {
	done := make(chan struct{})
	err = errors.New("the handler called runtime.Goexit")
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				outcomes, err = nil, &panicError{value: r, stack: debug.Stack()}
			}
		}()
		outcomes, err = p.c.handler.Handle(ctx, events)
	}()
	<-done
	return outcomes, redact.Error(err)
}

type panicError struct {
	value any
	stack []byte
}

// Error names the kind of panic.
func (e *panicError) Error() string { return "the handler panicked" + redact.Panic(e.value) }

// gather returns the next batch: up to Config.Batch fetched events, after a wait of up to Config.BatchWait for more. A
// batch without events only advances the offset. It returns false if work or fetching ended.
func (p *partition) gather(work context.Context) (chunk, bool) {
	if work.Err() != nil {
		return chunk{}, false
	}
	if p.rest.empty() {
		c, ok := p.receive(work, nil)
		if !ok {
			return c, false
		}
		p.rest = c
	}
	if len(p.rest.events) == 0 {
		c := p.rest
		p.rest = chunk{}
		return c, true
	}
	most := p.c.cfg.Batch
	batch := p.cut(most)
	if len(batch.events) >= most || p.c.cfg.BatchWait < 0 {
		return batch, true
	}
	timer := time.NewTimer(p.c.cfg.BatchWait)
	defer timer.Stop()
	owned := false
	for len(batch.events) < most && p.budget.room() {
		c, ok := p.receive(work, timer.C)
		if !ok {
			break // return the batch first; the next gather sees the cause
		}
		if p.rest = c; c.begins != nil || c.epoch != batch.epoch {
			break // the events before it are of another log, or another leader's
		}
		if !owned {
			batch.events, owned = append(make([]event.Event, 0, most), batch.events...), true
		}
		more := p.cut(most - len(batch.events))
		batch.events = append(batch.events, more.events...)
		batch.next, batch.bytes, batch.epoch = more.next, batch.bytes+more.bytes, more.epoch
	}
	return batch, true
}

func (p *partition) receive(work context.Context, timeout <-chan time.Time) (chunk, bool) {
	select {
	case c, ok := <-p.chunks:
		return c, ok
	case <-work.Done():
	case <-timeout:
	}
	return chunk{}, false
}

// cut takes up to n events from p.rest. The memory of a chunk counts until its last event is handled.
func (p *partition) cut(n int) chunk {
	c := p.rest
	if len(c.events) <= n {
		p.rest = chunk{}
		return c
	}
	p.rest.events = c.events[n:]
	return chunk{events: c.events[:n:n], next: c.events[n-1].Position.Offset + 1, epoch: c.epoch}
}

// passed advances the position over decided events, and over the offsets after them that have no record.
func (p *partition) passed(decided, next int64) {
	if decided < next {
		p.c.handler.Absent(p.Topic, p.ID, decided, next)
	}
	p.decided(next)
}

// decided advances the position and commits it. While the partition rereads a range and every event of it is a
// duplicate, decided does not commit: the group's offset would go back. Usually the handler's progress was some seconds
// old, and the group's offset was right.
func (p *partition) decided(next int64) {
	p.update(true, func() { p.next = next })
	if next >= p.reread.To || p.reread.Applied > 0 {
		p.commits.decided(p, next, p.group.metadata())
	}
}

// update changes the position or the end of the log, and records whether records wait. decided reports whether an event
// was decided.
func (p *partition) update(decided bool, change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.c.standstill.update(p.Partition, p.next < 0 || p.high < 0 || p.next < p.high, decided)
}

func (p *partition) setPosition(next int64) { p.update(false, func() { p.next = next }) }

func (p *partition) setEnd(high int64) { p.update(false, func() { p.high, p.seen = high, time.Now() }) }

func (p *partition) endIsOlder(than time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.seen) > than
}

// setHandling sets when the running Handle began; zero means that none runs.
func (p *partition) setHandling(since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handling = since
}

func (p *partition) position() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

func (p *partition) halt(offset int64, id uuid.UUID, err error, do string) *Halt {
	h := &Halt{Partition: p.Partition, Offset: offset, EventID: id, Err: err, Since: time.Now()}
	p.mu.Lock()
	p.halted = h
	p.mu.Unlock()
	attrs := []any{
		"topic", p.Topic, "partition", p.ID, "offset", offset, "event", id, "error", err,
		"do", do + ": the partition continues at this offset, nothing is lost, and later events wait",
	}
	var panicked *panicError
	if errors.As(err, &panicked) {
		attrs = append(attrs, "stack", string(panicked.stack))
	}
	p.c.cfg.Logger.Error("partition halted: the other partitions go on", attrs...)
	if p.c.cfg.Observer.Halted != nil {
		p.c.cfg.Observer.Halted(*h)
	}
	return h
}

func (p Partition) compareTo(q Partition) int {
	return cmp.Or(cmp.Compare(p.Topic, q.Topic), cmp.Compare(p.ID, q.ID))
}

// fetchBytes returns the size that one fetch requests.
func (p *partition) fetchBytes() int { return p.budget.share(p.c.cfg.FetchBytes) }

// String formats the partition as Kafka's tools do.
func (p Partition) String() string { return fmt.Sprintf("%s-%d", p.Topic, p.ID) }
