package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Scope is the name of the instruments' meter.
const Scope = "github.com/effectonce/effectonce/idempotency"

// Telemetry has the instruments. Make one with [New], for all guards and workers of a process.
type Telemetry struct {
	meter metric.Meter

	replay, different, inProgress, expired, unknown, finished, released, lost metric.Int64Counter
	recovered, failed, swept                                                  metric.Int64Counter
	duration                                                                  metric.Float64Histogram

	mu         sync.Mutex
	operations map[string]bool // that have a label of their own
}

// maxOperations bounds the values of the label operation: each is a series of every instrument, for as long as the
// process runs.
const maxOperations = 200

// label is an operation's value of the label. Those that come after the first maxOperations share "other": names are
// the user's, and a path in the place of a route's pattern makes one for every resource.
func (t *Telemetry) label(operation string) attribute.KeyValue {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.operations[operation] && len(t.operations) >= maxOperations {
		operation = "other"
	} else {
		t.operations[operation] = true
	}
	return attribute.String("operation", operation)
}

// New makes the instruments. It fails when the provider refuses one.
func New(provider metric.MeterProvider) (*Telemetry, error) {
	if provider == nil {
		return nil, errors.New("telemetry: a MeterProvider is required")
	}
	t := &Telemetry{meter: provider.Meter(Scope), operations: map[string]bool{}}
	var errs []error
	counter := func(to *metric.Int64Counter, name, help string) {
		c, err := t.meter.Int64Counter(name, metric.WithDescription(help))
		*to, errs = c, append(errs, err)
	}
	counter(&t.replay, "idempotency.replay.count", "Callers that were given a former attempt's result.")
	counter(&t.different, "idempotency.conflict.different_request.count", "Keys that were used for another command, "+
		"and refused.")
	counter(&t.inProgress, "idempotency.conflict.in_progress.count", "Callers that were told to come again.")
	counter(&t.expired, "idempotency.expired_retry.count", "Callers that came for a result that is no longer kept.")
	counter(&t.unknown, "idempotency.unknown_outcome.count", "Operations whose outcome became unknown.")
	counter(&t.finished, "idempotency.finished.count", "Attempts that ended with a result, by the code of a final "+
		"refusal.")
	counter(&t.released, "idempotency.released.count", "Attempts that ended without an effect, their key free again.")
	counter(&t.lost, "idempotency.lease_lost.count", "Owners that lost their lease while they worked.")
	counter(&t.recovered, "idempotency.recovery.count", "Operations that recovery worked at, by outcome.")
	counter(&t.failed, "idempotency.recovery.failure.count", "Looks and sweeps of recovery that the store did not "+
		"answer.")
	counter(&t.swept, "idempotency.swept.count", "Bodies and tombstones removed after their time.")
	var err error
	t.duration, err = t.meter.Float64Histogram("idempotency.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the claim to the recorded result."))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return t, nil
}

// one adds 1 for an operation.
func (t *Telemetry) one(c metric.Int64Counter, operation string, more ...attribute.KeyValue) {
	c.Add(context.Background(), 1, metric.WithAttributes(append(more, t.label(operation))...))
}

// Guard is for the Config of a guard, and of pgstore.
func (t *Telemetry) Guard() idempotency.Observer {
	return idempotency.Observer{
		Replayed:     func(i idempotency.ReplayedInfo) { t.one(t.replay, i.Operation) },
		Mismatched:   func(i idempotency.MismatchedInfo) { t.one(t.different, i.Operation) },
		InProgress:   func(i idempotency.InProgressInfo) { t.one(t.inProgress, i.Operation) },
		ExpiredRetry: func(i idempotency.ExpiredInfo) { t.one(t.expired, i.Operation) },
		Unknown: func(i idempotency.UnknownInfo) {
			if i.New {
				t.one(t.unknown, i.Operation, attribute.String("stage", string(i.Stage)))
			}
		},
		Finished: func(i idempotency.FinishedInfo) {
			t.one(t.finished, i.Operation, attribute.String("failure", i.Failure))
			t.duration.Record(context.Background(), i.Took.Seconds(), metric.WithAttributes(t.label(i.Operation)))
		},
		Released:  func(i idempotency.ReleasedInfo) { t.one(t.released, i.Operation) },
		LeaseLost: func(i idempotency.LeaseLostInfo) { t.one(t.lost, i.Operation) },
	}
}

// Recovery is for the Config of a recovery worker.
func (t *Telemetry) Recovery() recovery.Observer {
	return recovery.Observer{
		Recovered: func(i recovery.RecoveredInfo) {
			t.one(t.recovered, i.Operation, attribute.String("outcome", string(i.Outcome)))
		},
		Failed: func(error) { t.failed.Add(context.Background(), 1) },
		Swept: func(s store.SweepResult) {
			t.swept.Add(context.Background(), int64(s.Bodies), metric.WithAttributes(attribute.String("kind", "body")))
			t.swept.Add(context.Background(), int64(s.Tombstones),
				metric.WithAttributes(attribute.String("kind", "tombstone")))
		},
	}
}

// Stats is the part of a store that [Telemetry.Watch] asks; every [store.Recoverer] has it.
type Stats interface {
	Stats(ctx context.Context) (store.Stats, error)
}

// Watch asks the store at each collection, until the registration that it returns is unregistered. What a store cannot
// answer is missing in that collection.
func (t *Telemetry) Watch(store Stats) (metric.Registration, error) {
	var errs []error
	gauge := func(name, unit, help string) metric.Int64ObservableGauge {
		g, err := t.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return g
	}
	working := gauge("idempotency.in_progress.count", "{key}", "Keys that somebody works at.")
	unknown := gauge("idempotency.unknown_state.count", "{key}", "Keys whose outcome is unknown, those given to a "+
		"person included.")
	stuck := gauge("idempotency.stuck.count", "{key}", "Keys given to a person.")
	age, err := t.meter.Float64ObservableGauge("idempotency.in_progress.age.max", metric.WithUnit("s"),
		metric.WithDescription("Time since the claim of the oldest key that somebody works at."))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	registration, err := t.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		s, err := store.Stats(ctx)
		if err != nil {
			return fmt.Errorf("telemetry: asking the store: %w", err)
		}
		o.ObserveInt64(working, s.InProgress)
		o.ObserveInt64(unknown, s.Unknown)
		o.ObserveInt64(stuck, s.Stuck)
		o.ObserveFloat64(age, s.OldestInProgress.Seconds())
		return nil
	}, working, unknown, stuck, age)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return registration, nil
}
