package telemetry_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/idempotency/telemetry"
	"github.com/effectonce/effectonce/outcome"
)

// recorder keeps the values by name and attributes.
type recorder struct {
	mu       sync.Mutex
	names    map[string]bool
	values   map[string]float64
	callback metric.Callback

	boundaries []float64 // of the histogram
}

func newRecorder() *recorder {
	return &recorder{names: map[string]bool{}, values: map[string]float64{}}
}

func (r *recorder) add(name string, v float64, attrs string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values[name+"{"+attrs+"}"] += v
}

type provider struct {
	noop.MeterProvider
	r *recorder
}

func (p provider) Meter(string, ...metric.MeterOption) metric.Meter { return meter{r: p.r} }

type meter struct {
	noop.Meter
	r *recorder
}

type counter struct {
	noop.Int64Counter
	r    *recorder
	name string
}

func (c counter) Add(_ context.Context, n int64, opts ...metric.AddOption) {
	set := metric.NewAddConfig(opts).Attributes()
	var all []string
	for _, kv := range set.ToSlice() {
		all = append(all, string(kv.Key)+"="+kv.Value.String())
	}
	c.r.add(c.name, float64(n), strings.Join(all, ","))
}

type gauge struct {
	noop.Int64ObservableGauge
	name string
}

type floatGauge struct {
	noop.Float64ObservableGauge
	name string
}

type histogram struct {
	noop.Float64Histogram
	r    *recorder
	name string
}

func (h histogram) Record(_ context.Context, v float64, _ ...metric.RecordOption) {
	h.r.add(h.name, v, "")
}

func (m meter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	m.r.names[name] = true
	return counter{r: m.r, name: name}, nil
}

func (m meter) Float64Histogram(name string, options ...metric.Float64HistogramOption) (metric.Float64Histogram,
	error,
) {
	m.r.names[name] = true
	m.r.boundaries = metric.NewFloat64HistogramConfig(options...).ExplicitBucketBoundaries()
	return histogram{r: m.r, name: name}, nil
}

func (m meter) Int64ObservableGauge(name string, _ ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge,
	error,
) {
	m.r.names[name] = true
	return gauge{name: name}, nil
}

func (m meter) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (
	metric.Float64ObservableGauge, error,
) {
	m.r.names[name] = true
	return floatGauge{name: name}, nil
}

func (m meter) RegisterCallback(f metric.Callback, _ ...metric.Observable) (metric.Registration, error) {
	m.r.callback = f
	return noop.Registration{}, nil
}

// observer records the values of a callback.
type observer struct {
	noop.Observer
	r *recorder
}

func (o observer) ObserveInt64(g metric.Int64Observable, v int64, _ ...metric.ObserveOption) {
	o.r.add(g.(gauge).name, float64(v), "")
}

func (o observer) ObserveFloat64(g metric.Float64Observable, v float64, _ ...metric.ObserveOption) {
	o.r.add(g.(floatGauge).name, v, "")
}

func newTelemetry(t *testing.T) (*telemetry.Telemetry, *recorder) {
	t.Helper()
	r := newRecorder()
	m, err := telemetry.New(provider{r: r})
	if err != nil {
		t.Fatal(err)
	}
	return m, r
}

// TestNames: the package's doc lists the instruments, and no others.
func TestNames(t *testing.T) {
	t.Parallel()
	m, r := newTelemetry(t)
	if _, err := m.Watch(memstore.New(memstore.Config{})); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^//\t(idempotency\.[a-z_.]+) `).FindAllStringSubmatch(string(doc),
		-1) {
		listed[found[1]] = true
	}
	if !maps.Equal(listed, r.names) {
		t.Errorf("documented %v\nmade %v", slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(r.names)))
	}
}

// TestEachCallbackIsCounted: no func of an Observer is nil.
func TestEachCallbackIsCounted(t *testing.T) {
	t.Parallel()
	m, _ := newTelemetry(t)
	for _, o := range []any{m.Guard(), m.Recovery()} {
		for v, i := reflect.ValueOf(o), 0; i < v.NumField(); i++ {
			if v.Field(i).IsNil() {
				t.Errorf("%T.%s is not counted", o, v.Type().Field(i).Name)
			}
		}
	}
}

// TestValues: the values after calls of a guard and a worker.
func TestValues(t *testing.T) {
	t.Parallel()
	m, r := newTelemetry(t)
	now := time.Now()
	s := memstore.New(memstore.Config{Now: func() time.Time { return now }})
	guard, err := guard.New(s, guard.Config{
		Observer: m.Guard(), RecoverAfter: -1,
		Keep: idempotency.Retention{Body: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	try := func(key string, sum byte, end error) {
		_, _ = guard.Do(t.Context(), idempotency.Request{
			Key: idempotency.Key{Operation: "pay", Value: key}, Fingerprint: idempotency.Fingerprint{
				Sum: [32]byte{sum},
			},
		}, func(context.Context) (idempotency.Result, error) { return idempotency.Result{Code: 201}, end })
	}
	try("a", 1, nil)
	try("a", 1, nil)
	try("a", 2, nil)
	try("b", 1, outcome.Terminal("card_declined", os.ErrInvalid))
	try("c", 1, outcome.Retryable(os.ErrInvalid))
	try("d", 1, outcome.Unknown(os.ErrInvalid))
	if _, err := s.Claim(t.Context(), idempotency.Request{Key: idempotency.Key{Operation: "pay", Value: "e"}},
		store.ClaimOptions{Token: "of another owner, 128 bits", Lease: 10 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	try("e", 0, nil)
	now = now.Add(2 * time.Hour)
	try("a", 1, nil)
	worker, err := recovery.New(s, map[string]recovery.Handler{"pay": {}}, recovery.Config{Observer: m.Recovery()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Watch(s); err != nil {
		t.Fatal(err)
	}
	if err := r.callback(t.Context(), observer{r: r}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"idempotency.replay.count{operation=pay}":                         1,
		"idempotency.conflict.different_request.count{operation=pay}":     1,
		"idempotency.conflict.in_progress.count{operation=pay}":           1,
		"idempotency.expired_retry.count{operation=pay}":                  1,
		"idempotency.unknown_outcome.count{operation=pay,stage=RECEIVED}": 1,
		"idempotency.finished.count{failure=,operation=pay}":              1,
		"idempotency.finished.count{failure=card_declined,operation=pay}": 1,
		"idempotency.released.count{operation=pay}":                       1,
		"idempotency.recovery.count{operation=pay,outcome=stuck}":         1,
		"idempotency.in_progress.count{}":                                 1,
		"idempotency.in_progress.age.max{}":                               7200,
		"idempotency.unknown_state.count{}":                               1,
		"idempotency.stuck.count{}":                                       1,
	} {
		if got := r.values[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if t.Failed() {
		t.Log(r.values)
	}
}

// TestOperationsAreBounded: the series do not grow with the names of operations.
func TestOperationsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	all, err := telemetry.New(provider{r: r})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		all.Guard().Released(idempotency.ReleasedInfo{Operation: fmt.Sprintf("POST /things/%d", i)})
	}
	if n := len(r.values); n > 201 || r.values["idempotency.released.count{operation=other}"] != float64(1000-n+1) {
		t.Errorf("%d series, %v of other", n, r.values["idempotency.released.count{operation=other}"])
	}
}

// TestDurationHasBuckets: the boundaries of the SDK begin at 5, which would be seconds.
func TestDurationHasBuckets(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	if _, err := telemetry.New(provider{r: r}); err != nil {
		t.Fatal(err)
	}
	of := r.boundaries
	if len(of) == 0 || !slices.IsSorted(of) || of[0] > 0.001 || of[len(of)-1] < 60 {
		t.Errorf("boundaries %v, in seconds", of)
	}
}
