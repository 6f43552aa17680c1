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

	replay, mismatched, inProgress, expired, unknown, finished, released, leaseLost metric.Int64Counter
	recovered, recoveryFailures, swept                                              metric.Int64Counter
	duration                                                                        metric.Float64Histogram

	mu         sync.Mutex
	operations map[string]bool // values of the label operation
}

// maxOperations bounds the values of the label operation: each is a series of every instrument, for as long as the
// process runs.
const maxOperations = 200

// operationLabel labels operations after the first maxOperations "other", for a user who names operations by paths
// instead of routes has one for every resource.
func (t *Telemetry) operationLabel(operation string) attribute.KeyValue {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.operations[operation] && len(t.operations) >= maxOperations {
		operation = "other"
	} else {
		t.operations[operation] = true
	}
	return attribute.String("operation", operation)
}

// New makes the instruments. An error is the provider's.
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
	counter(&t.replay, "idempotency.replay.count", "Callers that got an earlier attempt's result.")
	counter(&t.mismatched, "idempotency.conflict.different_request.count", "Keys that were used for another command "+
		"and refused.")
	counter(&t.inProgress, "idempotency.conflict.in_progress.count", "Callers that got ErrInProgress.")
	counter(&t.expired, "idempotency.expired_retry.count", "Callers that asked for a result that is no longer kept.")
	counter(&t.unknown, "idempotency.unknown_outcome.count", "Operations whose outcome became unknown.")
	counter(&t.finished, "idempotency.finished.count", "Attempts that ended with a result, by the code of a final "+
		"refusal.")
	counter(&t.released, "idempotency.released.count", "Attempts that ended without an effect, and released their key.")
	counter(&t.leaseLost, "idempotency.lease_lost.count", "Owners that lost their lease during their work.")
	counter(&t.recovered, "idempotency.recovery.count", "Operations that recovery processed, by outcome.")
	counter(&t.recoveryFailures, "idempotency.recovery.failure.count", "Queries and sweeps of recovery that failed.")
	counter(&t.swept, "idempotency.swept.count", "Bodies and tombstones removed after their retention.")
	var err error
	t.duration, err = t.meter.Float64Histogram("idempotency.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the claim to the recorded result."),
		// The SDK's own boundaries are of milliseconds: below 5 s there is one.
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return t, nil
}

// count adds 1 for an operation.
func (t *Telemetry) count(c metric.Int64Counter, operation string, more ...attribute.KeyValue) {
	c.Add(context.Background(), 1, metric.WithAttributes(append(more, t.operationLabel(operation))...))
}

// Guard returns the Observer for the Config of a guard or of pgstore.
func (t *Telemetry) Guard() idempotency.Observer {
	return idempotency.Observer{
		Replayed:     func(i idempotency.ReplayedInfo) { t.count(t.replay, i.Operation) },
		Mismatched:   func(i idempotency.MismatchedInfo) { t.count(t.mismatched, i.Operation) },
		InProgress:   func(i idempotency.InProgressInfo) { t.count(t.inProgress, i.Operation) },
		ExpiredRetry: func(i idempotency.ExpiredInfo) { t.count(t.expired, i.Operation) },
		Unknown: func(i idempotency.UnknownInfo) {
			if i.New {
				t.count(t.unknown, i.Operation, attribute.String("stage", string(i.Stage)))
			}
		},
		Finished: func(i idempotency.FinishedInfo) {
			t.count(t.finished, i.Operation, attribute.String("failure", i.Failure))
			t.duration.Record(context.Background(), i.Took.Seconds(),
				metric.WithAttributes(t.operationLabel(i.Operation)))
		},
		Released:  func(i idempotency.ReleasedInfo) { t.count(t.released, i.Operation) },
		LeaseLost: func(i idempotency.LeaseLostInfo) { t.count(t.leaseLost, i.Operation) },
	}
}

// Recovery returns the Observer for the Config of a recovery worker.
func (t *Telemetry) Recovery() recovery.Observer {
	return recovery.Observer{
		Recovered: func(i recovery.RecoveredInfo) {
			t.count(t.recovered, i.Operation, attribute.String("outcome", string(i.Outcome)))
		},
		Failed: func(error) { t.recoveryFailures.Add(context.Background(), 1) },
		Swept: func(s store.SweepResult) {
			t.swept.Add(context.Background(), int64(s.Bodies), metric.WithAttributes(attribute.String("kind", "body")))
			t.swept.Add(context.Background(), int64(s.Tombstones),
				metric.WithAttributes(attribute.String("kind", "tombstone")))
		},
	}
}

// Stats is the part of a store that [Telemetry.Watch] reads; every [store.Recoverer] has it.
type Stats interface {
	Stats(ctx context.Context) (store.Stats, error)
}

// Watch reads the store's Stats at each collection, until the registration is unregistered. After an error of the store
// the collection has no value of them.
func (t *Telemetry) Watch(store Stats) (metric.Registration, error) {
	var errs []error
	gauge := func(name, unit, help string) metric.Int64ObservableGauge {
		g, err := t.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return g
	}
	inProgress := gauge("idempotency.in_progress.count", "{key}", "Keys in progress.")
	unknown := gauge("idempotency.unknown_state.count", "{key}", "Keys whose outcome is unknown, stuck ones "+
		"included.")
	stuck := gauge("idempotency.stuck.count", "{key}", "Keys that recovery gave up: a person must resolve them.")
	age, err := t.meter.Float64ObservableGauge("idempotency.in_progress.age.max", metric.WithUnit("s"),
		metric.WithDescription("Time since the claim of the oldest key in progress."))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	registration, err := t.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		s, err := store.Stats(ctx)
		if err != nil {
			return fmt.Errorf("telemetry: reading the store's stats: %w", err)
		}
		o.ObserveInt64(inProgress, s.InProgress)
		o.ObserveInt64(unknown, s.Unknown)
		o.ObserveInt64(stuck, s.Stuck)
		o.ObserveFloat64(age, s.OldestInProgress.Seconds())
		return nil
	}, inProgress, unknown, stuck, age)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return registration, nil
}
