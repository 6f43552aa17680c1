package cycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/internal/tracing"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// Result is the result of publishing a claim.
type Result struct {
	Left  map[int16]bool // lanes with events whose outcome is unknown when time was up
	Late  bool           // time was up because the lease may have run out
	acked int
	rest  *Claim // the part that is retried apart
}

// Publish sends a claim's events until each has its fate, or time is up. Lanes that fail while others answer are
// retried apart, if apart is not nil.
func (r *Cycle) Publish(ctx context.Context, c *Claim, apart *Apart) (result Result) {
	d := delivery.New(c.Events, c.Items)
	leave := func(failure error, since time.Time) bool {
		if apart == nil || !apart.May(ctx, since) {
			return false
		}
		result.rest = c.split(d.Lanes())
		r.ReportPublish(result.rest.By, failure) // its failures count on their own from now on
		r.ReportPublish(c.By, nil)
		return true
	}
	result.acked, result.Late = r.Deliver(ctx, c.By, c.Grants(), d, c.Paused, leave)
	if result.rest == nil {
		result.Left = d.Lanes()
	}
	return result
}

// Deliver sends events of granted lanes, for a part of the relay, until each has its fate. Events whose outcome is
// unknown are sent again, the same and in the same order, with growing pauses and without a limit: an unreachable
// broker costs only time. It gives up when ctx ends, when a lease is no longer certain (late), and when leave returns
// true after a failed attempt. since is the start of the delivery.
func (r *Cycle) Deliver(ctx context.Context, part string, grants []lanes.Grant, d *delivery.Delivery, paused []string,
	leave func(failure error, since time.Time) bool,
) (acked int, late bool) {
	ctx, end := r.startPublish(ctx, d.Events())
	defer func() { end(acked) }()
	r.HoldBack(ctx, d, grants, paused)
	pause, since, attempts := outage.NewBackOff(), time.Now(), 0
	for d.Len() > 0 {
		held, release := r.WhileHeld(ctx, grants, r.Health.Closing())
		if held.Err() != nil {
			release()
			if late = ctx.Err() == nil; !late {
				r.Undrained.Add(int64(d.Len()))
			}
			break
		}
		attempts++
		n, failure := r.Attempt(held, part, d)
		release()
		acked += n
		if failure == nil || d.Len() == 0 {
			continue
		}
		if r.Observer.PublishFailed != nil {
			r.Observer.PublishFailed(d.Len(), failure)
		}
		if leave != nil && ctx.Err() == nil && leave(failure, since) {
			break
		}
		_ = sleep.For(ctx, pause.NextBackOff())
	}
	if acked > 0 && r.Observer.Published != nil {
		r.Observer.Published(acked, attempts, time.Since(since))
	}
	return acked, late
}

// routes returns the partitions of events, as the publisher would choose them now.
func (r *Cycle) routes(ctx context.Context) delivery.Route {
	if r.To.Route == nil {
		return func(e *event.Event) delivery.Place { return delivery.At(e.Topic, 0) }
	}
	partitions := map[string]func(e *event.Event) int32{} // by topic; nil: not known at the moment
	return func(e *event.Event) delivery.Place {
		partition, asked := partitions[e.Topic]
		if !asked {
			var err error
			if partition, err = r.To.Route(ctx, e.Topic); err != nil {
				partition = nil
			}
			partitions[e.Topic] = partition
		}
		if partition == nil {
			return delivery.Whole(e.Topic)
		}
		return delivery.At(e.Topic, partition(e))
	}
}

// HoldBack holds, before anything is sent, the events that cannot be sent now.
func (r *Cycle) HoldBack(ctx context.Context, d *delivery.Delivery, grants []lanes.Grant, paused []string) {
	closed := r.Health.Closed()
	if len(paused) > 0 { // the prober may have set an older list since
		both := make(map[delivery.Place]bool, len(closed)+len(paused))
		maps.Copy(both, closed)
		for _, topic := range paused {
			both[delivery.Whole(topic)] = true
		}
		closed = both
	}
	holds := map[int16]delivery.Groups{}
	for i := range grants {
		if g := &grants[i]; len(g.Groups) > 0 {
			holds[g.Lane] = g.Groups
		}
	}
	d.HoldBack(closed, holds, r.routes(ctx))
}

// judge decides the fates of the events that an attempt left without an ack. began is the time of the attempt's start;
// counts is false for an attempt that was cut short, which tells nothing about any place. It reports whether an event
// was refused.
func (r *Cycle) judge(d *delivery.Delivery, verdicts []error, route delivery.Route, began time.Time, counts bool) (
	refusals bool,
) {
	topics := d.RefusedTopics(verdicts)
	for topic, err := range topics {
		r.CloseTopic(topic, err)
	}
	failing, refusals := d.Judge(verdicts, topics, route)
	if counts {
		for _, at := range r.Health.Failed(failing, began, time.Now()) {
			r.reportClosed(at, failing[at])
		}
	}
	d.HoldClosed(r.Health.Closed(), route)
	return refusals
}

// startPublish begins the span "publish" of a claim: a trace of its own, with a link to each trace that its events were
// appended in. It lasts until every event is acked or given up, repetitions included. end takes the number of acked
// events. Without a provider it does nothing.
func (r *Cycle) startPublish(ctx context.Context, events []event.Event) (_ context.Context, end func(acked int)) {
	if r.Tracer == nil || len(events) == 0 {
		return ctx, func(int) {}
	}
	ctx, span := r.Tracer.Start(ctx, tracing.Span{
		Operation: "publish", Type: "send", Kind: trace.SpanKindClient, Root: true,
		Links: r.Tracer.Links(len(events), func(i int) map[string]string { return events[i].Headers },
			func(i int) string { return events[i].ID.String() }),
	}, len(events), func(i int) string { return events[i].Topic })
	return ctx, func(acked int) {
		// The other events are sent again, held or parked: the relay's metrics and its log tell which.
		span.SetAttributes(attribute.Int("effectonce.acked", acked))
		span.End()
	}
}

// Attempt sends the undecided events once, for a part of the relay. failure is nil if refusals explain every missing
// ack: then the rest is sent at once.
func (r *Cycle) Attempt(ctx context.Context, part string, d *delivery.Delivery) (n int, failure error) {
	began := time.Now()
	verdicts := r.Send(ctx, d.Events())
	if len(verdicts) != d.Len() {
		failure = errors.New("relay: the publisher did not return one verdict per event; nothing counts as acked")
		d.Unanswered()
		r.Kafka.Report(part, failure, time.Now())
		return 0, failure
	}
	route := r.routes(ctx)
	n, failure, unsent := d.Take(verdicts)
	if n > 0 {
		r.Health.Acked(time.Now(), func() map[delivery.Place]bool { return d.Acked(route) })
		r.Kafka.Answered()
	}
	if n > 0 && n < d.Len() {
		r.reportPassed(d, verdicts)
	}
	if n < d.Len() && !r.judge(d, verdicts, route, began, ctx.Err() == nil) && failure == nil {
		failure = unsent
	}
	d.DropDecided()
	report := failure
	if n > 0 && d.Len() == 0 {
		report = nil // events without an ack are held or parked
	}
	if report == nil || context.Cause(ctx) != errLeaseOver {
		r.ReportPublish(part, report)
	}
	return n, failure
}

// reportPassed says that the publisher breaks the order of a key, once in a while.
func (r *Cycle) reportPassed(d *delivery.Delivery, verdicts []error) {
	acked, before, verdict := d.Passed(verdicts)
	now, last := time.Now(), r.passedSaid.Load()
	if acked == nil || last != nil && now.Sub(*last) < start.RefusalsEvery || !r.passedSaid.CompareAndSwap(last, &now) {
		return
	}
	r.Log.Error("the publisher breaks the order of a key: it acked an event behind one that it did not ack; mend it "+
		"by the rules of relay.Publisher", "topic", acked.Topic, "lane", acked.Position.Lane, "acked", acked.ID,
		"before", before.ID, "error", verdict)
}

// ReportPublish records the end of an attempt. A topic that cannot be pinned is the database's failure.
func (r *Cycle) ReportPublish(part string, failure error) {
	pins := part + ", pins"
	if _, pin := errors.AsType[*pg.Error](failure); pin {
		r.Postgres.Report(pins, failure, time.Now())
		return
	}
	r.Kafka.Report(part, failure, time.Now())
	if failure == nil {
		r.Postgres.Report(pins, nil, time.Now())
	}
}

// ReportRest records that a part has no more to send. The outage lasts if what it had is held without an answer.
func (r *Cycle) ReportRest(part string) {
	if r.Health.Unanswered() {
		r.Kafka.Waits(part)
		return
	}
	r.ReportPublish(part, nil)
}

// Send gives events to the publisher, with the database's time: this machine's clock may be days behind, and Kafka
// would delete such records at once.
func (r *Cycle) Send(ctx context.Context, events []event.Event) []error {
	if now, known := r.Clock.Now(); known {
		for i := range events {
			events[i].Position.Timestamp = now
		}
	}
	return r.To.Publish(ctx, events)
}

// errLeaseOver ends an attempt whose lanes another relay may own by now.
var errLeaseOver = errors.New("relay: the lease ran out")

// errClosing ends an attempt because another pump has closed a place: it may be the one that this attempt waits for.
var errClosing = errors.New("relay: a partition or topic is held from now on")

// WhileHeld returns a context that ends when the lease of one of the lanes runs out on the local clock. Heartbeats that
// renew the lease meanwhile move the end: a slow broker does not cost a lane. It ends with closing, too, if that is not
// nil.
func (r *Cycle) WhileHeld(ctx context.Context, grants []lanes.Grant, closing <-chan struct{}) (held context.Context,
	release func(),
) {
	held, cancel := context.WithCancelCause(ctx)
	until, ok := r.Lanes.Deadline(grants)
	if !ok || !time.Now().Before(until) {
		cancel(errLeaseOver)
		return held, func() {}
	}
	done := make(chan struct{})
	timer := time.NewTimer(time.Until(until))
	go func() {
		defer close(done)
		for {
			select {
			case <-held.Done():
				return
			case <-closing:
				cancel(errClosing)
				return
			case <-timer.C:
			}
			until, ok := r.Lanes.Deadline(grants)
			left := time.Until(until)
			if !ok || left <= 0 {
				cancel(errLeaseOver)
				return
			}
			timer.Reset(left)
		}
	}()
	return held, func() {
		timer.Stop()
		cancel(nil)
		<-done
	}
}

// Grants are the grants of its lanes.
func (c *Claim) Grants() []lanes.Grant {
	grants := make([]lanes.Grant, len(c.Parts))
	for i := range c.Parts {
		grants[i] = c.Parts[i].Grant
	}
	return grants
}

// split takes lanes out of a claim.
func (c *Claim) split(lanes map[int16]bool) *Claim {
	rest := &Claim{Epoch: c.Epoch, Paused: c.Paused, took: c.took}
	c.Parts = slices.DeleteFunc(c.Parts, func(l Part) bool {
		if lanes[l.Lane] {
			rest.Parts = append(rest.Parts, l)
		}
		return lanes[l.Lane]
	})
	for i := range c.Events {
		if lanes[c.Events[i].Position.Lane] {
			rest.Events, rest.Items = append(rest.Events, c.Events[i]), append(rest.Items, c.Items[i])
		}
	}
	rest.By = fmt.Sprintf("%s, lane %d", c.By, rest.Parts[0].Lane)
	return rest
}
