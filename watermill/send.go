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
	"github.com/effectonce/effectonce/outcome"
)

// publishCall is one call of Publisher.Publish. Each lane writes its own verdicts.
type publishCall struct {
	*Publisher
	events   []event.Event
	verdicts []error

	mu      sync.Mutex
	refused map[string]bool // topics
}

// Reasons for not sending an event.
var (
	errEarlierUnacked = errors.New("an earlier event of its lane was not acknowledged")
	errInFlight       = errors.New("an earlier event of its lane is in flight: the publisher has not returned")
	errTopicRefused   = errors.New("its topic was refused")
	errTimeout        = errors.New("the publisher did not return in time")
)

// send publishes the events of a lane one after the other, up to the first that is not acked.
func (c *publishCall) send(ctx context.Context, l lane, indexes []int) {
	skip := func(from int, reason error) {
		for _, i := range indexes[from:] {
			c.verdicts[i] = notSent(reason)
		}
	}
	for n, i := range indexes {
		switch {
		case ctx.Err() != nil:
			skip(n, context.Cause(ctx))
			return
		case c.isRefused(l.topic):
			skip(n, errTopicRefused)
			return
		}
		if c.verdicts[i] = c.publishEvent(l, &c.events[i]); c.verdicts[i] != nil {
			skip(n+1, errEarlierUnacked)
			return
		}
	}
}

// publishEvent publishes an event. A refused one is published again, alone, and that verdict counts.
func (c *publishCall) publishEvent(l lane, e *event.Event) error {
	c.exclusive.RLock()
	verdict := c.attempt(l, e)
	c.exclusive.RUnlock()
	var refused *outcome.Refusal
	if !errors.As(verdict, &refused) || refused.Topic {
		return verdict
	}
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	if !c.idle() {
		return fmt.Errorf("watermill: refused, perhaps because of another message that was in flight: %w", refused.Err)
	}
	return c.attempt(l, e)
}

func (c *publishCall) attempt(l lane, e *event.Event) error {
	if !c.acquire(l) {
		return notSent(errInFlight)
	}
	return c.verdict(l, c.publish(l, fromEvent(e)))
}

// publish waits for the publisher until Timeout. It releases the lane when the publisher has returned.
func (c *publishCall) publish(l lane, m *message.Message) error {
	// The relay's context may hold private values, and its end must not reach a subscriber in this process.
	ctx, cancel := context.WithCancel(c.cfg.Propagator.Extract(context.Background(),
		propagation.MapCarrier(m.Metadata)))
	m.SetContext(ctx)
	answer := make(chan error, 1)
	go func() {
		err := c.callPublisher(l.topic, m)
		c.release(l)
		answer <- err
	}()
	timedOut := make(chan struct{})
	timer := time.AfterFunc(c.cfg.Timeout, func() { cancel(); close(timedOut) })
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-timedOut:
		return fmt.Errorf("%w: %v", errTimeout, c.cfg.Timeout)
	}
}

func (c *publishCall) callPublisher(topic string, m *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the publisher panicked" + redact.Panic(p))
		}
	}()
	return c.to.Publish(topic, m)
}

// verdict turns the publisher's error into a verdict.
func (c *publishCall) verdict(l lane, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("watermill: publishing to %s: %w", l.topic, redact.Error(err))
	if errors.Is(err, errTimeout) {
		return err
	}
	switch c.cfg.Refused(l.topic, err) {
	case RecordRefused:
		return &outcome.Refusal{Err: err}
	case TopicRefused:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused[l.topic] = true
		return &outcome.Refusal{Topic: true, Err: err}
	}
	return err
}

func (c *publishCall) isRefused(topic string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[topic]
}

// notSent is the verdict of an event that was not sent.
func notSent(reason error) error {
	return outcome.Retryable(fmt.Errorf("watermill: not sent: %w", reason))
}
