package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/canary"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/metrics"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// The canaries must not be in any log, metric, span, panic or error. authored is the text that an effect's author
// wrote into an error: it must be shown, because it explains the failure.
const (
	payloadCanary = "canary-payload-4fd1"
	keyCanary     = "canary-key-88a2"
	headerCanary  = "canary-header-07c3"
	authored      = "what-the-author-wrote-3b"
)

// output collects logs, spans, metrics and errors.
type output struct {
	mu       sync.Mutex
	b        bytes.Buffer
	registry *prometheus.Registry
	spans    *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
}

func newOutput() *output {
	s := &output{registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder()}
	s.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	return s
}

// Write implements io.Writer.
func (s *output) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

// log returns a logger of all levels.
func (s *output) log() *slog.Logger {
	return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// value adds a value in all usual print formats.
func (s *output) value(what string, v any) {
	fmt.Fprintf(s, "%s: %v\n%s: %+v\n%s: %q\n", what, v, what, v, what, v)
	s.log().Info(what, "value", v)
}

// text returns the whole output, with the metrics page and the spans.
func (s *output) text(t *testing.T) string {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(s, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, span := range s.spans.Ended() {
		fmt.Fprintf(s, "span: %s %+v %v %+v\n", span.Name(), span.Status(), span.Attributes(), span.Events())
		for _, l := range span.Links() {
			fmt.Fprintf(s, "link: %v\n", l.Attributes)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// checkLeaks reports each line with a canary, and returns the output.
func (s *output) checkLeaks(t *testing.T) string {
	t.Helper()
	text := s.text(t)
	for _, line := range canary.Lines(text, payloadCanary, keyCanary, headerCanary) {
		t.Errorf("leaks %q: %s", canary.Leaks(line, payloadCanary, keyCanary, headerCanary), line)
	}
	return text
}

// privateEvent returns an event whose personal data are canaries. Its type selects the effect.
func privateEvent(topic, typ string) event.Event {
	return event.Event{
		ID: event.NewID(), Topic: topic, Key: keyCanary + "-" + typ, Type: typ,
		Payload: []byte(`{"card":"` + payloadCanary + `"}`), Headers: map[string]string{"h": headerCanary},
	}
}

// TestI10AppendLeaksNothing: an error names a refused event by its index and field.
func TestI10AppendLeaksNothing(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t, migrations.Outbox), newOutput()
	a := outbox.Appender{MaxPayload: 100, TracerProvider: s.provider}
	for name, change := range map[string]func(*event.Event){
		"topic": func(e *event.Event) { e.Topic = "no topic" }, "no type": func(e *event.Event) { e.Type = "" },
		"long key": func(e *event.Event) { e.Key = strings.Repeat(keyCanary, 1000) }, "NUL key": func(e *event.Event) {
			e.Key += "\x00"
		},
		"bad key": func(e *event.Event) { e.Key += "\xff" }, "large": func(e *event.Event) {
			e.Payload = bytes.Repeat(e.Payload, 10)
		},
		"long header": func(e *event.Event) { e.Headers["h"] = strings.Repeat(headerCanary, 1000) },
		"bad header":  func(e *event.Event) { e.Headers["h"] += "\x00" }, "reserved": func(e *event.Event) {
			e.Headers["ce_id"] = headerCanary
		},
		"year": func(e *event.Event) { e.Time = time.Date(10000, 1, 2, 3, 4, 5, 6, time.UTC) },
	} {
		e := privateEvent("payments", "T")
		change(&e)
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return a.Append(t.Context(), tx, e) })
		if refused, ok := errors.AsType[*outbox.EventError](err); !ok {
			t.Errorf("%s: %v", name, err)
		} else {
			s.value(name, *refused)
		}
		s.value(name, err)
	}
	// Refusals of the database, for each way in which Append writes.
	db.Exec(t,
		`alter table outbox_event add constraint never check (key not like 'canary%'), add constraint one unique (lane, message_id)`)
	for _, n := range []int{1, 20, 100} {
		events := make([]event.Event, n)
		for i := range events {
			events[i] = privateEvent("payments", "T")
		}
		err := pgx.BeginFunc(t.Context(), db.Pool,
			func(tx pgx.Tx) error { return a.Append(t.Context(), tx, events...) })
		if err == nil {
			t.Errorf("%d events were accepted", n)
		}
		s.value("database", err)
	}
	if text := s.checkLeaks(t); !strings.Contains(text, "outbox: event 0: Payload has ") ||
		!strings.Contains(text, "violates check constraint") {
		t.Errorf("the errors do not name the cause:\n%s", text)
	}
}

// TestI10RelayLeaksNothing: an event that Kafka refuses is parked with the events behind it, and only its id is logged.
func TestI10RelayLeaksNothing(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, s := pgtest.New(t, migrations.Outbox), newOutput()
	topic := kafkatest.Topic(t, 1, map[string]string{"max.message.bytes": "2000"})
	figures, err := metrics.NewRelay(s.registry)
	if err != nil {
		t.Fatal(err)
	}
	k, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{Logger: s.log(), Observer: figures.Publisher()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	r, err := relay.New(db.Pool, k, relay.Config{
		Logger: s.log(), Observer: figures.Observer(),
		TracerProvider: s.provider,
	})
	if err != nil {
		t.Fatal(err)
	}
	large := privateEvent(topic, "large")
	for large.Payload = []byte(payloadCanary); len(large.Payload) < 8000; { // incompressible
		large.Payload = append(large.Payload, uuid.NewString()...)
	}
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Append(t.Context(), tx, large, privateEvent(topic, "large"), privateEvent(topic, "fine"))
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	pgtest.AwaitSQL(t, db, `select (select count(*) from outbox_parked) = 2 and not exists (select from outbox_event)`)
	status, err := operator.ReadStatus(t.Context(), db.Pool, db.Schema)
	s.value("status", status)
	s.value("status", err)
	sample, err := r.Sample(t.Context())
	s.value("sample", sample)
	s.value("sample", err)
	cancel()
	s.value("run", <-ran)
	text := s.checkLeaks(t)
	if !strings.Contains(text, "MESSAGE_TOO_LARGE") || !strings.Contains(text, large.ID.String()) {
		t.Errorf("the log does not name the refused event and the reason:\n%s", text)
	}
}

// effects fails in every way in which effects can, with the payload in the error.
func effects() inbox.Effect {
	exec := func(sql string, arg func(e event.Event) any) inbox.Effect {
		return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			_, err := tx.Exec(ctx, sql, arg(e))
			return err
		}
	}
	payload := func(e event.Event) any { return string(e.Payload) }
	return inbox.Types(map[string]inbox.Effect{
		"panics":        func(_ context.Context, _ pgx.Tx, e event.Event) error { panic("no: " + string(e.Payload)) },
		"panics, error": func(_ context.Context, _ pgx.Tx, e event.Event) error { panic(fmt.Errorf("no: %s", e.Key)) },
		"panics, event": func(_ context.Context, _ pgx.Tx, e event.Event) error { panic(e) },
		"out of range": func(_ context.Context, _ pgx.Tx, e event.Event) error {
			_ = e.Payload[len(e.Payload)+len(e.Key)]
			return nil
		},
		"integer":        exec(`insert into effect (n) values ($1::text::integer)`, payload),
		"integer, bound": exec(`insert into effect (n) values ($1)`, payload),
		"header":         exec(`insert into effect (n) values ($1)`, func(e event.Event) any { return e.Headers["h"] }),
		"whole event":    exec(`insert into effect (n) values ($1)`, func(e event.Event) any { return e }),
		"map": exec(`insert into effect (n) values ($1)`,
			func(e event.Event) any { return map[string]string{"k": e.Key} }),
		"time":     exec(`select $1::text::timestamptz`, payload),
		"uuid":     exec(`select $1::text::uuid`, payload),
		"json":     exec(`select ($1::text || 'x')::jsonb`, payload),
		"unique":   exec(`insert into effect (card) values ($1), ($1)`, payload),
		"check":    exec(`insert into effect (card, n) values ($1, -1)`, payload),
		"too long": exec(`insert into effect (short) values ($1)`, payload),
		"savepoint": func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `select $1::text::integer`, e.Key)
				return fmt.Errorf("in a savepoint: %w", err)
			})
		},
		"malformed": inbox.JSON("malformed", func(context.Context, pgx.Tx, event.Event, struct{ Card int }) error {
			return nil
		}),
		"authored": func(context.Context, pgx.Tx, event.Event) error {
			return outcome.Terminal("refused", errors.New(authored))
		},
		"retried": func(context.Context, pgx.Tx, event.Event) error { return outcome.Retryable(errors.New("away")) },
	})
}

var effectTypes = []string{
	"panics", "panics, error", "panics, event", "out of range", "integer", "integer, bound", "header", "whole event",
	"map", "time", "uuid", "json",
	"unique", "check", "too long", "savepoint", "malformed", "authored", "retried", "no such type",
}

// work runs a worker with logs, metrics and traces until the end of the test.
func (s *output) work(t *testing.T, topic string, h inbox.Handler, in *inbox.Inbox, figures *metrics.Worker) {
	t.Helper()
	c, err := consumer.New(h, kafkatest.Brokers(t), []string{topic}, consumer.Config{
		Group: topic + uuid.NewString(), Logger: s.log(), Observer: figures.Consumer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	g.Go(func() error { return figures.Run(ctx, in, c) })
	t.Cleanup(func() {
		s.value("status", c.Status())
		cancel()
		if err := g.Wait(); err != nil {
			s.value("run", err)
		}
		s.checkLeaks(t)
	})
}

// produceEvents writes events as the relay would.
func produceEvents(t *testing.T, topic string, events ...event.Event) {
	t.Helper()
	var records []kafkatest.Record
	for _, e := range events {
		e.Position.Epoch = uuid.NewString() + ".1"
		r := kafkatest.Record{Key: []byte(e.Key), Value: e.Payload}
		for _, h := range event.AppendHeaders(nil, &e) {
			r.Headers = append(r.Headers, kafkatest.Header(h))
		}
		records = append(records, r)
	}
	kafkatest.Produce(t, topic, records...)
}

// TestI10WorkerLeaksNothing: however an effect fails, the event is named by id, type and offset; the author's error
// text is shown, but not the values that Postgres, pgx or a panic quote from the event.
func TestI10WorkerLeaksNothing(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	db, s, topic := pgtest.New(t, migrations.Inbox), newOutput(), kafkatest.Topic(t, 1)
	db.Exec(t, `create table effect (n integer check (n > 0), card text unique, short varchar(3))`)
	figures, err := metrics.NewWorker(s.registry, "private")
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db.Pool, "private", inbox.Config{
		MaxAttempts: 2, Backoff: time.Millisecond, MaxRetryFor: time.Millisecond, ReleaseEvery: 5 * time.Millisecond,
		Logger: s.log(), Observer: figures.Inbox(), TracerProvider: s.provider,
	})
	if err != nil {
		t.Fatal(err)
	}
	var events []event.Event
	for _, typ := range effectTypes {
		events = append(events, privateEvent(topic, typ), privateEvent(topic, typ))
	}
	old := privateEvent(topic, "old")
	old.ID = event.IDAt(time.Date(2020, 1, 2, 3, 4, 5, 6, time.UTC))
	events = append(events, old)
	s.work(t, topic, in.Each(effects()), in, figures)
	// Before this row exists, the old id would count as new.
	pgtest.AwaitSQL(t, db, `select exists (select from inbox_consumer)`)
	db.Exec(t, `update inbox_consumer set floor = '2019-01-01'`)
	produceEvents(t, topic, events...)
	pgtest.AwaitSQL(t, db, `select count(*) = $1 from inbox_parked`, len(events))
	o, err := inboxoperator.New(db.Pool, "", "private", "ada")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events[:len(events)-1] {
		if _, err := o.ReleaseKey(t.Context(), "", topic, e.Key, admin.Seen{}, "again"); err != nil {
			s.value("release", err)
		}
	}
	pgtest.AwaitSQL(t, db, `select not exists (select from inbox_parked_key where state = 'releasing')`)
	text := s.checkLeaks(t)
	for _, want := range []string{
		authored, `"code":"refused"`, events[0].ID.String(), old.ID.String(), "22P02",
		"the effect panicked", "index out of range", "is not the JSON of",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q:\n%s", want, text)
		}
	}
	// The other columns of a parked record must not leak either: metrics and pages read them.
	for _, text := range strings.Split(pgtest.One[string](t, db,
		`select string_agg(code || ': ' || reason, e'\n') from inbox_parked`), "\n") {
		if leaks := canary.Leaks(text, payloadCanary, keyCanary, headerCanary); leaks != nil {
			t.Errorf("the error of a parked event leaks %q: %s", leaks, text)
		}
	}
}

// TestI10HaltLeaksNothing: a partition halts, because of the inbox's error or of a handler's panic.
func TestI10HaltLeaksNothing(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for _, typ := range []string{"panics", "integer", "whole event"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			db, s, topic := pgtest.New(t, migrations.Inbox), newOutput(), kafkatest.Topic(t, 1)
			db.Exec(t, `create table effect (n integer)`)
			figures, err := metrics.NewWorker(s.registry, "private")
			if err != nil {
				t.Fatal(err)
			}
			in, err := inbox.New(db.Pool, "private", inbox.Config{
				MaxAttempts: 1, OnFailure: inbox.Halt, Logger: s.log(), Observer: figures.Inbox(),
				TracerProvider: s.provider,
			})
			if err != nil {
				t.Fatal(err)
			}
			produceEvents(t, topic, privateEvent(topic, typ))
			s.work(t, topic, in.Each(effects()), in, figures)
			pgtest.Await(t, "it halts", func() (bool, error) {
				return strings.Contains(s.text(t), "partition halted"),
					nil
			})
			if text := pgtest.One[string](t, db, `select halted_reason from inbox_progress`); canary.Leaks(text,
				payloadCanary, keyCanary) != nil {
				t.Errorf("the error of the halt: %s", text)
			}
		})
	}
	t.Run("handler", func(t *testing.T) {
		t.Parallel()
		db, s, topic := pgtest.New(t, migrations.Inbox), newOutput(), kafkatest.Topic(t, 1)
		figures, err := metrics.NewWorker(s.registry, "private")
		if err != nil {
			t.Fatal(err)
		}
		in, err := inbox.New(db.Pool, "private", inbox.Config{Logger: s.log(), Observer: figures.Inbox()})
		if err != nil {
			t.Fatal(err)
		}
		produceEvents(t, topic, privateEvent(topic, "any"))
		s.work(t, topic, inbox.HandlerFunc(panicking), in, figures)
		pgtest.Await(t, "it halts", func() (bool, error) {
			return strings.Contains(s.text(t), "partition halted"),
				nil
		})
	})
}

// panicking is a handler that panics with its events.
func panicking(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
	panic(fmt.Sprint(string(events[0].Payload), events[0].Key))
}
