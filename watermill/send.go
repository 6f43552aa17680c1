package watermill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/redact"
)

// call is one call of Publisher.Publish. Each lane writes its own verdicts.
type call struct {
	*Publisher
	events   []event.Event
	verdicts []error

	mu      sync.Mutex
	refused map[string]bool // topics that take nothing
}

// The reasons why a call did not send an event.
var (
	errBehind  = errors.New("an earlier event of its lane was not acknowledged")
	errBusy    = errors.New("an earlier event of its lane is still on its way: the publisher has not answered")
	errRefused = errors.New("its topic was refused meanwhile")
	errLate    = errors.New("the publisher did not answer in time")
)

// send publishes the events of a lane one after the other, up to the first that is not acked.
func (c *call) send(ctx context.Context, l lane, indexes []int) {
	stop := func(from int, why error) {
		for _, i := range indexes[from:] {
			c.verdicts[i] = notSentError{why}
		}
	}
	for n, i := range indexes {
		switch {
		case ctx.Err() != nil:
			stop(n, context.Cause(ctx))
			return
		case c.isRefused(l.topic):
			stop(n, errRefused)
			return
		}
		if c.verdicts[i] = c.one(l, &c.events[i]); c.verdicts[i] != nil {
			stop(n+1, errBehind)
			return
		}
	}
}

// one publishes one event. One that is refused is published again, alone, and that verdict counts.
func (c *call) one(l lane, e *event.Event) error {
	c.beside.RLock()
	verdict := c.attempt(l, e)
	c.beside.RUnlock()
	var refused *rejection
	if !errors.As(verdict, &refused) || refused.scope != scopeRecord {
		return verdict
	}
	c.beside.Lock()
	defer c.beside.Unlock()
	if !c.quiet() {
		return fmt.Errorf("watermill: refused, perhaps for one that was on its way beside it: %w", refused.err)
	}
	return c.attempt(l, e)
}

func (c *call) attempt(l lane, e *event.Event) error {
	if !c.take(l) {
		return notSentError{errBusy}
	}
	return c.verdict(l, c.publish(l, fromEvent(e)))
}

// publish sends one message and waits for the answer, for as long as Timeout says. The lane is free when it has come.
func (c *call) publish(l lane, m *message.Message) error {
	// Of its own: values of the relay's context are nobody's business, and what the publisher hands over to a
	// subscriber in this process must not end with this call.
	ctx, cancel := context.WithCancel(c.cfg.Propagator.Extract(context.Background(),
		propagation.MapCarrier(m.Metadata)))
	m.SetContext(ctx)
	answer := make(chan error, 1)
	go func() {
		err := c.publishOne(l.topic, m)
		c.free(l)
		answer <- err
	}()
	late := make(chan struct{})
	timer := time.AfterFunc(c.cfg.Timeout, func() { cancel(); close(late) })
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-late:
		return fmt.Errorf("%w: %v", errLate, c.cfg.Timeout)
	}
}

func (c *call) publishOne(topic string, m *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the publisher panicked" + redact.Panic(p))
		}
	}()
	return c.to.Publish(topic, m)
}

// verdict is what an answer means to the relay.
func (c *call) verdict(l lane, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("watermill: publishing to %s: %w", l.topic, redact.Error(err))
	if errors.Is(err, errLate) {
		return err
	}
	switch c.cfg.Refused(l.topic, err) {
	case RecordRefused:
		return &rejection{err, scopeRecord}
	case TopicRefused:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused[l.topic] = true
		return &rejection{err, scopeTopic}
	}
	return err
}

func (c *call) isRefused(topic string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[topic]
}

// notSentError is the verdict of an event that this call did not send, see relay.Publisher.
type notSentError struct{ why error }

// NotSent is true.
func (notSentError) NotSent() bool { return true }

func (e notSentError) Error() string { return "watermill: not sent: " + e.why.Error() }

func (e notSentError) Unwrap() error { return e.why }

// The scopes of a refusal.
const (
	scopeRecord = "record"
	scopeTopic  = "topic"
)

// rejection is a certain refusal, see relay.Publisher.
type rejection struct {
	err   error
	scope string
}

// Rejected is true.
func (*rejection) Rejected() bool { return true }

// Scope is "record" or "topic".
func (r *rejection) Scope() string { return r.scope }

func (r *rejection) Error() string { return r.err.Error() }

func (r *rejection) Unwrap() error { return r.err }
