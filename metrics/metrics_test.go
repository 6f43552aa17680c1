package metrics_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/metrics"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// recorder records registrations. Gather does not return a metric with labels before it has a value.
type recorder struct {
	prometheus.Registerer
	names map[string]string // labels by name
}

var (
	fqName = regexp.MustCompile(`fqName: "([^"]+)"`)
	labels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

func (r *recorder) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		r.names[fqName.FindStringSubmatch(d.String())[1]] = labels.FindStringSubmatch(d.String())[1]
	}
	return r.Registerer.Register(c)
}

// documented reads the tables of docs/metrics.md: labels and types by name. A name in _total is a counter, a metric
// whose meaning begins with "histogram" is one, and all others are gauges.
func documented(t *testing.T) (names, types map[string]string) {
	t.Helper()
	docs, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names, types = map[string]string{}, map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(effectonce_\\w+)(?:\\{([^}]*)\\})?` \\| ?(histogram)?.*\\|$")
	for _, m := range row.FindAllStringSubmatch(string(docs), -1) {
		names[m[1]], types[m[1]] = m[2], "gauge"
		switch {
		case m[3] != "":
			types[m[1]] = m[3]
		case strings.HasSuffix(m[1], "_total"):
			types[m[1]] = "counter"
		}
	}
	maps.DeleteFunc(names, func(name, _ string) bool { // of the binary; TestManyOutboxes tests those of outboxes
		return name == "effectonce_relay_build_info" || strings.HasPrefix(name, "effectonce_outbox_")
	})
	return names, types
}

// TestNames compares the registered metrics, labels and types with the tables of the docs.
func TestNames(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	r := &recorder{registry, map[string]string{}}
	m, err := metrics.NewRelay(r)
	if err != nil {
		t.Fatal(err)
	}
	w, err := metrics.NewWorker(r, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	names, types := documented(t)
	if !maps.Equal(r.names, names) {
		for _, name := range slices.Sorted(maps.Keys(r.names)) {
			if got, ok := names[name]; !ok || got != r.names[name] {
				t.Errorf("%s{%s} is registered, the docs have {%s} (%v)", name, r.names[name], got, ok)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if _, ok := r.names[name]; !ok {
				t.Errorf("%s is in the docs, but not registered", name)
			}
		}
	}
	call(t, m.Observer())
	call(t, m.Publisher())
	call(t, w.Inbox())
	call(t, w.Consumer())
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gathered {
		if got := strings.ToLower(f.GetType().String()); got != types[f.GetName()] {
			t.Errorf("%s is a %s, the docs say %s", f.GetName(), got, types[f.GetName()])
		}
	}
}

// call calls every callback of an Observer, and fails for a callback without a metric.
func call(t *testing.T, observer any) {
	t.Helper()
	v := reflect.ValueOf(observer)
	for i := range v.NumField() {
		name := v.Type().String() + "." + v.Type().Field(i).Name
		if v.Field(i).IsNil() {
			if !slices.Contains(uncounted, name) {
				t.Errorf("%s has no metric", name)
			}
			continue
		}
		args := make([]reflect.Value, v.Field(i).Type().NumIn())
		for n := range args {
			arg := v.Field(i).Type().In(n)
			args[n] = reflect.Zero(arg)
			switch {
			case arg.Kind() == reflect.Int:
				args[n] = reflect.ValueOf(3)
			case arg == reflect.TypeFor[inbox.RetriedInfo]():
				args[n] = reflect.ValueOf(inbox.RetriedInfo{Reason: "away"})
			}
		}
		v.Field(i).Call(args)
	}
}

// uncounted are callbacks without a metric, because another one covers them.
var uncounted = []string{
	"consumer.Observer.Committed", // lag
	"consumer.Observer.Halted",    // halted_partitions
}

func TestDuplicateRegistration(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	for i, want := range []bool{true, false} {
		if _, err := metrics.NewRelay(registry); (err == nil) != want {
			t.Errorf("relay %d: %v", i, err)
		}
		if _, err := metrics.NewWorker(registry, "a"); (err == nil) != want {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	if _, err := metrics.NewRelay(registry); err == nil || !strings.Contains(err.Error(), "WrapRegistererWith") {
		t.Errorf("%v", err)
	}
	// Another consumer in the same process has another label.
	if _, err := metrics.NewWorker(registry, "b"); err != nil {
		t.Error(err)
	}
}

// value returns the value of a metric without labels, or with one.
func value(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gathered {
		for _, m := range f.GetMetric() {
			matches := f.GetName() == name && label == ""
			for _, l := range m.GetLabel() {
				matches = matches || f.GetName() == name && l.GetValue() == label
			}
			switch {
			case !matches:
			case m.GetHistogram() != nil:
				return float64(m.GetHistogram().GetSampleCount())
			default:
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no %s %s", name, label)
	return 0
}

// TestRelayMetrics: metrics of a relay that publishes, and of its outbox.
func TestRelayMetrics(t *testing.T) {
	t.Parallel()
	db, registry := pgtest.New(t, migrations.Outbox), prometheus.NewRegistry()
	m, err := metrics.NewRelay(registry)
	if err != nil {
		t.Fatal(err)
	}
	var p outboxtest.MemoryPublisher
	r, err := relay.New(db.Pool, &p, relay.Config{Observer: m.Observer()})
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "insert into outbox_event (topic, key, type) select 't', g::text, 'T' from generate_series(1, 7) g")
	if _, err := r.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "insert into outbox_event (topic, key, type, message_id) select 't', 'k', 'T', gen_random_uuid() from "+
		"generate_series(1, 2)")
	db.Exec(t, "update outbox_event set created_at = created_at - interval '1 hour'")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, r) }()
	pgtest.Await(t, "a sample", func() (bool, error) {
		return value(t, registry, "effectonce_relay_sampled_timestamp_seconds", "") > 0, nil
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for name, want := range map[string]float64{
		"effectonce_relay_published_events_total": 7, "effectonce_relay_settled_events_total": 7,
		"effectonce_relay_settle_seconds": 1,
		"effectonce_relay_backlog_events": 2, "effectonce_relay_lanes_taken_total": 32,
		"effectonce_relay_lanes_owned": 0,
	} {
		if got := value(t, registry, name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := value(t, registry, "effectonce_relay_backlog_oldest_seconds", ""); got < 3600 || got > 7200 {
		t.Errorf("the age of the oldest event is %v s", got)
	}
	if m.Away() != nil {
		t.Errorf("away: %v", m.Away())
	}
	m.Observer().Outage("kafka", errors.New("injected"))
	if value(t, registry, "effectonce_relay_outage", "kafka") != 1 || m.Away() == nil {
		t.Error("Outage is not counted")
	}
	m.Observer().Outage("kafka", nil)
	if value(t, registry, "effectonce_relay_outage", "kafka") != 0 ||
		value(t, registry, "effectonce_relay_outages_total", "kafka") != 1 || m.Away() != nil {
		t.Error("the end of an outage is not counted")
	}
}

// TestWorkerMetrics: outcomes of events, and metrics of the inbox.
func TestWorkerMetrics(t *testing.T) {
	t.Parallel()
	db, registry := pgtest.New(t, migrations.Inbox), prometheus.NewRegistry()
	m, err := metrics.NewWorker(registry, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{
		Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 2,
		Observer: m.Inbox(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, in, nil) }()
	pgtest.Await(t, "a sample", func() (bool, error) {
		return value(t, registry, "effectonce_inbox_sampled_timestamp_seconds", "") > 0, nil
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := value(t, registry, "effectonce_inbox_ahead_seconds", ""); got <= 1.9*86400 || got > 3*86400 {
		t.Errorf("%v s ahead", got)
	}
	m.Inbox().Handled(inbox.HandledInfo{Applied: 3, Duplicate: 2, Skipped: 1, Parked: 4, Quarantined: 5})
	for outcome, want := range map[string]float64{
		"applied": 3, "duplicate": 2, "skipped": 1, "parked": 4,
		"quarantined": 5,
	} {
		if got := value(t, registry, "effectonce_inbox_events_total", outcome); got != want {
			t.Errorf("%s: %v, want %v", outcome, got, want)
		}
	}
	m.Consumer().Lost(consumer.LostRange{From: 5, To: 9})
	if got := value(t, registry, "effectonce_consumer_lost_records_total", ""); got != 4 {
		t.Errorf("%v records lost, want 4", got)
	}
	m.Consumer().Lost(consumer.LostRange{From: 5, To: 5}) // the topic was created again
	m.Consumer().Repeated(consumer.RepeatedInfo{Dropped: 7, Applied: 2})
	for name, want := range map[string]float64{
		"replaced_logs": 1, "lost_records": 4, "repeated_events": 7,
		"reapplied_events": 2,
	} {
		if got := value(t, registry, "effectonce_consumer_"+name+"_total", ""); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	m.Consumer().Forgotten(consumer.ForgottenRange{From: 5, To: 9, Applied: 3})
	if got := value(t, registry, "effectonce_consumer_forgotten_events_total", ""); got != 3 {
		t.Errorf("%v events forgotten, want 3", got)
	}
}

func TestBoth(t *testing.T) {
	t.Parallel()
	var calls []string
	record := func(what string) func(inbox.HandledInfo) {
		return func(i inbox.HandledInfo) { calls = append(calls, what+i.Topic) }
	}
	metrics.Both(inbox.Observer{Handled: record("a")}, inbox.Observer{Handled: record("b")}).Handled(
		inbox.HandledInfo{Topic: "t"})
	metrics.Both(inbox.Observer{Handled: record("c")}, inbox.Observer{}).Handled(inbox.HandledInfo{})
	metrics.Both(inbox.Observer{}, inbox.Observer{Handled: record("d")}).Handled(inbox.HandledInfo{})
	if metrics.Both(inbox.Observer{}, inbox.Observer{}).Handled != nil ||
		!slices.Equal(calls, []string{"at", "bt", "c", "d"}) {
		t.Errorf("calls %v", calls)
	}
}

// TestLint checks names and help texts with promlint.
func TestLint(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	if _, err := metrics.NewRelay(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.NewWorker(registry, "ledger"); err != nil {
		t.Fatal(err)
	}
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(gathered).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
