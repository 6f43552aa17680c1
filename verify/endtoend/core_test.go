package endtoend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outboxtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
	relayoperator "github.com/effectonce/effectonce/relay/operator"
)

// core is the way of some events from a producer to their effects, and of a request at the edge, over a pool under
// test. What has happened is read over another pool.
type core struct {
	t    *testing.T
	db   *pgtest.DB    // of the oracle
	pool *pgxpool.Pool // under test
	log  *slog.Logger

	events  []event.Event // as they were appended
	charges int           // calls of the provider

	mu        sync.Mutex
	published []event.Event
	mended    bool // refused events and failing effects are no more
}

func newCore(t *testing.T, db *pgtest.DB, pool *pgxpool.Pool, log *slog.Logger) *core {
	t.Helper()
	db.Exec(t, `create table effect (consumer text not null, id uuid not null, key text, payload bytea)`)
	db.Exec(t, `create table paid (who text not null)`)
	c := &core{t: t, db: db, pool: pool, log: log}
	at := time.Date(2026, 2, 28, 23, 59, 59, 123456000, time.UTC)
	for i := range 8 {
		e := event.Event{
			ID: event.NewID(), Source: "s'\\", Tenant: "té", Topic: "payments", Type: "Paid", Time: at,
			Key: fmt.Sprintf("k-ü%d", i%2), ContentType: "text/plain", Headers: map[string]string{"h": "é\\'\""},
			Payload: []byte{byte(i), 0, 255, '\\', 'x', '\''},
		}
		switch i {
		case 6:
			e.Type = "Refused" // by the publisher; with none of its key behind it, which would be published maybe
		case 3:
			e.Type = "Failing"
		case 4:
			e.Payload = []byte{}
		case 5:
			e.Payload = nil
		}
		c.events = append(c.events, e)
	}
	c.events = append(c.events, event.Event{
		ID: event.NewID(), Topic: "payments", Type: "Later", Key: "later", Time: at, Payload: []byte("{}"),
		NotBefore: time.Now().Add(time.Hour),
	})
	return c
}

// partError says which part of the way failed.
type partError struct {
	part string
	error
}

func (e *partError) Error() string { return e.part + ": " + e.error.Error() }

func (e *partError) Unwrap() error { return e.error }

// run goes the whole way, the parts in plain over the oracle's pool. It calls begins before each part. An error is a
// partError.
func (c *core) run(ctx context.Context, plain map[string]bool, begins func()) error {
	under := c.pool
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"producer", c.produce},
		{"relay", c.relay},
		{"worker by id", func(ctx context.Context) error { return c.work(ctx, inbox.ByID) }},
		{"worker by watermark", func(ctx context.Context) error { return c.work(ctx, inbox.ByWatermark) }},
		{"edge", c.edge},
		{"operators", c.look},
	} {
		begins()
		if c.pool = under; plain[part.name] {
			c.pool = c.db.Pool
		}
		if err := part.do(ctx); err != nil {
			return &partError{part.name, err}
		}
	}
	return nil
}

// one reads the oracle's answer.
func one[T any](ctx context.Context, c *core, sql string, args ...any) (v T, err error) {
	if err = c.db.Pool.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		err = fmt.Errorf("the oracle: %w", err)
	}
	return v, err
}

// until asks the oracle until the answer is yes, or a running part has ended.
func (c *core) until(ctx context.Context, ended <-chan error, sql string, args ...any) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := one[bool](ctx, c, sql, args...); yes || err != nil {
			return err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("ended before %s: %w", sql, err)
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w before %s", ctx.Err(), sql)
		}
	}
}

// runs runs something beside do.
func runs(ctx context.Context, run func(context.Context) error, do func(ended <-chan error) error) error {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	ended, left := make(chan error, 1), make(chan struct{})
	go func() { defer close(left); ended <- run(inner) }()
	err := do(ended)
	stop()
	<-left
	select {
	case end := <-ended:
		err = errors.Join(err, end)
	default:
	}
	return err
}

// produce appends some events in one transaction each, the others together, and one in a transaction that is undone.
func (c *core) produce(ctx context.Context) error {
	a := outbox.Appender{Schema: c.db.Schema}
	undone := errors.New("undone")
	add := func(end error, events ...event.Event) error {
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
			return errors.Join(a.Append(ctx, tx, events...), end)
		})
		if end != nil && errors.Is(err, end) && !strings.Contains(err.Error(), "outbox:") {
			return nil
		}
		return err
	}
	lost := c.events[0]
	lost.ID, lost.Key = event.NewID(), "undone"
	if err := errors.Join(add(nil, c.events[0]), add(undone, lost), add(nil, c.events[1:]...)); err != nil {
		return err
	}
	for i, e := range c.events {
		table := "outbox_event"
		if !e.NotBefore.IsZero() {
			table = "outbox_scheduled"
		}
		same, err := one[bool](ctx, c, `select count(*) = 1 from `+table+` where message_id = $1 and key = $2
			and tenant = $3 and payload is not distinct from $4 and event_time = $5`, e.ID.String(), e.Key, e.Tenant,
			e.Payload, e.Time)
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("event %d is not in %s as it was appended", i, table)
		}
	}
	if n, err := one[int](ctx, c, `select count(*) from outbox_event`); err != nil || n != len(c.events)-1 {
		return fmt.Errorf("%d events are in the outbox: %w", n, err)
	}
	_, err := c.db.Pool.Exec(ctx, `update outbox_scheduled set due = now() - interval '1 min'`)
	return err
}

// Publish implements relay.Publisher.
func (c *core) Publish(_ context.Context, events []event.Event) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	verdicts, failed := make([]error, len(events)), map[string]bool{}
	for i, e := range events {
		switch {
		case failed[e.Key]:
			verdicts[i] = errors.New("not sent")
		case e.Type == "Refused" && !c.mended:
			verdicts[i], failed[e.Key] = &outcome.Refusal{Err: errors.New("refused: too large")}, true
		default:
			c.published = append(c.published, e)
		}
	}
	return verdicts
}

func (c *core) mend(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mended = yes
}

func (c *core) isMended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mended
}

// relay publishes all of it. The refused event waits for an operator, with what is behind it.
func (c *core) relay(ctx context.Context) error {
	// The days of the archive, beside which a settle may be refused once, and send again.
	box, err := relay.Open(c.pool, c.db.Schema)
	if err != nil {
		return err
	}
	if _, err := box.MaintainArchive(ctx, 1); err != nil {
		return err
	}
	r, err := relay.New(c.pool, c, relay.Config{
		Schema: c.db.Schema, Lease: 15 * time.Second, HoldAfter: time.Hour, Logger: c.log, ArchiveDays: 1,
		ProbeAwake: 5 * time.Millisecond, FloorEvery: 20 * time.Millisecond, RescanEvery: 20 * time.Millisecond,
		DrainTimeout: time.Second,
	})
	if err != nil {
		return err
	}
	err = runs(ctx, r.Run, func(ended <-chan error) error {
		err := c.until(ctx, ended, `select not exists (select from outbox_event) and not exists (select from
			outbox_claim) and not exists (select from outbox_scheduled) and exists (select from outbox_parked)`)
		if err != nil {
			return err
		}
		c.mend(true)
		defer c.mend(false)
		if err := c.release(ctx); err != nil {
			return err
		}
		return c.until(ctx, ended, `select not exists (select from outbox_parked) and not exists (select from
			outbox_parked_key) and not exists (select from outbox_claim) and not exists (select from outbox_event)`)
	})
	if err != nil {
		return err
	}
	if n, err := one[int](ctx, c, `select count(*) from outbox_lane where owner is not null`); err != nil || n > 0 {
		return fmt.Errorf("%d lanes were not given back: %w", n, err)
	}
	return c.checkPublished()
}

// release releases the refused event.
func (c *core) release(ctx context.Context) error {
	o, err := relayoperator.New(c.pool, c.db.Schema, "ada")
	if err != nil {
		return err
	}
	e := c.events[6]
	if n, err := o.ReleaseKey(ctx, e.Tenant, e.Topic, e.Key, admin.Seen{}, "mended"); err != nil || n < 1 {
		return fmt.Errorf("%d events were released: %w", n, err)
	}
	return nil
}

// checkPublished compares what was published with what was appended: each event, whole, in the order of its key.
func (c *core) checkPublished() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first []event.Event
	seen := map[uuid.UUID]bool{}
	for _, e := range c.published {
		if !seen[e.ID] {
			seen[e.ID] = true
			first = append(first, e)
		}
	}
	c.published = first
	want, got := byKey(c.events), byKey(first)
	for key, list := range want {
		if len(got[key]) != len(list) {
			return fmt.Errorf("key %s: %d events were published, want %d", key, len(got[key]), len(list))
		}
		for i, e := range list {
			p := got[key][i]
			if p.ID != e.ID || p.Source != e.Source || p.Tenant != e.Tenant || p.Type != e.Type ||
				p.ContentType != e.ContentType || !maps.Equal(p.Headers, e.Headers) || !p.Time.Equal(e.Time) ||
				string(p.Payload) != string(e.Payload) || (p.Payload == nil) != (e.Payload == nil) {
				return fmt.Errorf("key %s, event %d was published as %+v, want %+v", key, i, p, e)
			}
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d keys were published, want %d", len(got), len(want))
	}
	return nil
}

func byKey(events []event.Event) map[string][]event.Event {
	keys := map[string][]event.Event{}
	for _, e := range events {
		keys[e.Key] = append(keys[e.Key], e)
	}
	return keys
}

// work applies what was published, once. One effect fails in the database, is parked, and released by an operator.
func (c *core) work(ctx context.Context, dedup inbox.Dedup) error {
	name := "ledger-" + dedup.String()
	in, err := inbox.New(c.pool, name, inbox.Config{
		Schema: c.db.Schema, Dedup: dedup, Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1,
		MaxAttempts: 2, Backoff: time.Millisecond, ReleaseEvery: 5 * time.Millisecond, Logger: c.log,
		Observer: inbox.Observer{
			Retried: func(i inbox.RetriedInfo) { c.log.Warn("retried", "why", i.Reason, "error", i.Err) },
		},
	})
	if err != nil {
		return err
	}
	if err := in.Prepare(ctx); err != nil {
		return err
	}
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.Type == "Failing" && !c.isMended() {
			_, err := tx.Exec(ctx, `select 1 / 0`)
			return err
		}
		_, err := tx.Exec(ctx, `insert into `+c.db.Schema+`.effect (consumer, id, key, payload)
			values ($1, $2, $3, $4)`, name, e.ID.String(), e.Key, e.Payload)
		return err
	})
	failing := c.events[3]
	for _, again := range []bool{false, true} {
		out, err := outboxtest.Deliver(ctx, c.t, h, c.published...)
		if err != nil {
			return err
		}
		behind := false
		for i, e := range c.published {
			want := inbox.Applied
			if behind = behind || e.ID == failing.ID; behind && e.Key == failing.Key {
				want = inbox.Parked
			} else if again {
				want = inbox.Duplicate
			}
			if out[i] != want && !(again && out[i] == inbox.Duplicate) {
				return fmt.Errorf("event %d is %v, want %v (again: %v)", i, out[i], want, again)
			}
		}
	}
	o, err := inboxoperator.New(c.pool, c.db.Schema, name, "ada")
	if err != nil {
		return err
	}
	list, err := o.Parked(ctx, admin.ParkedFilter{})
	if err != nil || len(list) == 0 || list[0].MessageID != failing.ID || list[0].Key != failing.Key {
		return fmt.Errorf("the operator sees the parked %+v: %w", list, err)
	}
	c.mend(true)
	defer c.mend(false)
	if n, err := o.ReleaseKey(ctx, failing.Tenant, failing.Topic, failing.Key, admin.Seen{},
		"mended"); err != nil || n < 1 {
		return fmt.Errorf("%d events were released: %w", n, err)
	}
	err = runs(ctx, in.Run, func(ended <-chan error) error {
		return c.until(ctx, ended, `select not exists (select from inbox_parked) and not exists (select from
			inbox_parked_key)`)
	})
	if err != nil {
		return err
	}
	return c.checkEffects(ctx, name)
}

// checkEffects compares the effects with what was appended.
func (c *core) checkEffects(ctx context.Context, name string) error {
	if n, err := one[int](ctx, c, `select count(*) from effect where consumer = $1`, name); err != nil ||
		n != len(c.events) {
		return fmt.Errorf("%d effects, want %d: %w", n, len(c.events), err)
	}
	for i, e := range c.events {
		same, err := one[bool](ctx, c, `select count(*) = 1 from effect where consumer = $1 and id = $2 and key = $3
			and payload is not distinct from $4`, name, e.ID.String(), e.Key, e.Payload)
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("the effect of event %d is another", i)
		}
	}
	return nil
}

// edge runs a request in a transaction, and one that calls a provider, and replays both.
func (c *core) edge(ctx context.Context) error {
	for _, again := range []bool{false, true} {
		if err := c.pay(ctx, again); err != nil {
			return err
		}
		if err := c.charge(ctx, again); err != nil {
			return err
		}
	}
	n, err := one[int](ctx, c, `select count(*) from paid where who = $1`, "é")
	if err != nil || n != 1 || c.charges != 1 {
		return fmt.Errorf("paid %d times, charged %d times: %w", n, c.charges, err)
	}
	return nil
}

// answered is the result of the edge's requests.
func answered() idempotency.Result {
	return idempotency.Result{
		Code: 201, Header: map[string][]string{"Etag": {"é\\"}}, Body: []byte{0, 255, '\\', 'x'},
	}
}

// keys is the store of the edge's keys, and a request of an operation.
func (c *core) keys(operation string) (*pgstore.Store, idempotency.Request, error) {
	keys, err := pgstore.New(c.pool, pgstore.Config{Schema: c.db.Schema, Logger: c.log})
	if err != nil {
		return nil, idempotency.Request{}, err
	}
	r, err := idempotency.NewRequest(idempotency.Key{Operation: operation, Value: "1"}, map[string]int{"n": 1})
	return keys, r, err
}

func (c *core) pay(ctx context.Context, again bool) error {
	keys, r, err := c.keys("pay")
	if err != nil {
		return err
	}
	res, err := keys.InTx(ctx, r, func(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
		_, err := tx.Exec(ctx, `insert into `+c.db.Schema+`.paid values ($1)`, "é")
		return answered(), err
	})
	return checkAnswer(res, again, err)
}

func (c *core) charge(ctx context.Context, again bool) error {
	keys, r, err := c.keys("charge")
	if err != nil {
		return err
	}
	g, err := guard.New(keys, guard.Config{Logger: c.log, RecoverAfter: -1})
	if err != nil {
		return err
	}
	res, err := g.Do(ctx, r, func(context.Context) (idempotency.Result, error) { c.charges++; return answered(), nil })
	return checkAnswer(res, again, err)
}

func checkAnswer(got idempotency.Result, again bool, err error) error {
	want := answered()
	if err == nil && (got.Code != want.Code || string(got.Body) != string(want.Body) || got.Replayed != again ||
		!slices.Equal(got.Header["Etag"], want.Header["Etag"])) {
		return fmt.Errorf("the result is %+v, want %+v, replayed %v", got, want, again)
	}
	return err
}

// look reads what operators read. The doctor has to be able to look.
func (c *core) look(ctx context.Context) error {
	if _, err := relayoperator.ReadStatus(ctx, c.pool, c.db.Schema); err != nil {
		return err
	}
	o, err := inboxoperator.New(c.pool, c.db.Schema, "", "ada")
	if err != nil {
		return err
	}
	if list, err := o.Consumers(ctx); err != nil || len(list) != 2 {
		return fmt.Errorf("%d consumers: %w", len(list), err)
	}
	for _, f := range doctor.Examine(ctx, doctor.Subject{DB: c.pool, Schema: c.db.Schema}) {
		if strings.Contains(f.Found, "could not look") || strings.Contains(f.Found, "does not answer") {
			return fmt.Errorf("the doctor: %s: %s", f.Check, f.Found)
		}
	}
	return nil
}
