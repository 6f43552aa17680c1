package roles

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
)

// transactionLimit bounds a transaction. After it the outcome is unknown.
const transactionLimit = 10 * time.Second

// errRollback is the reason for a random rollback.
var errRollback = errors.New("random rollback")

// produce appends until ctx ends.
func produce(ctx context.Context, p *process) error {
	viaSQL := stdlib.OpenDBFromPool(p.db)
	defer func() { _ = viaSQL.Close() }()
	var all sync.WaitGroup
	for i := range p.Writers {
		all.Go(func() {
			w := &writer{process: p, sql: viaSQL, draw: rand.New(rand.NewPCG(p.Seed, p.seed(i)))}
			w.id = fmt.Sprintf("%s.%d.%d", p.Name, p.Life, i)
			w.run(ctx)
		})
	}
	all.Wait()
	return nil
}

// writer is one of a producer's goroutines.
type writer struct {
	*process
	sql  *sql.DB
	draw *rand.Rand
	id   string
	n    int // business ids
}

func (w *writer) chance(p float64) bool { return w.draw.Float64() < p }

// run keeps the rate. It does not catch up after an outage.
func (w *writer) run(ctx context.Context) {
	next := time.Now()
	for ctx.Err() == nil {
		b := w.plan()
		w.commit(ctx, b)
		next = next.Add(time.Duration(float64(time.Second) * float64(len(b.events)*w.Writers) / float64(w.Rate)))
		if wait := time.Until(next); wait > 0 {
			if sleep.For(ctx, wait) != nil {
				return
			}
		} else if wait < -time.Second {
			next = time.Now()
		}
	}
}

// batch is the plan of a transaction. Versions are assigned when it runs.
type batch struct {
	keys     []string // the aggregates, in the order of their locks
	events   []event.Event
	infos    []history.Event // by index of events
	viaSQL   bool
	rollback bool
}

// plan draws a transaction: mostly one aggregate and a few events in several topics, sometimes two aggregates, and
// rarely with an order of locks that may deadlock.
func (w *writer) plan() *batch {
	b := &batch{viaSQL: w.chance(0.2), rollback: w.chance(0.03)}
	b.keys = append(b.keys, w.key())
	if w.chance(0.15) {
		if other := w.key(); other != b.keys[0] {
			b.keys = append(b.keys, other)
			if (b.keys[0] > other) != w.chance(0.1) {
				b.keys[0], b.keys[1] = b.keys[1], b.keys[0]
			}
		}
	}
	n := 1 + w.draw.IntN(8)
	if w.chance(0.01) {
		n = 200 // appended by COPY, and more than a claim
	}
	for i := range n {
		w.add(b, b.keys[i%len(b.keys)])
	}
	return b
}

func (w *writer) key() string { return fmt.Sprintf("aggregate-%d", w.draw.IntN(w.Keys)) }

// add draws an event of an aggregate.
func (w *writer) add(b *batch, key string) {
	w.n++
	e := event.Event{
		ID: w.newID(), Topic: w.Topics[w.draw.IntN(len(w.Topics))], Key: key, Type: "Changed",
		ContentType: event.ContentTypeJSON,
	}
	info := history.Event{Business: fmt.Sprintf("%s.%d", w.id, w.n)}
	size := 50 + w.draw.IntN(400)
	if w.chance(0.3) {
		e.Tenant = "acme"
	}
	switch {
	case w.chance(0.05):
		e.Key = ""
	case w.chance(0.02):
		// It is ordered by the time at which it becomes due, so it has another key.
		e.Key, info.Scheduled, e.NotBefore = key+"-later", true, time.Now().Add(time.Second)
	}
	switch {
	case w.chance(0.003):
		size = 20_000 + w.draw.IntN(20_000)
	case e.Topic == w.TooLarge && w.chance(0.002):
		size, info.Poison = TooLargeBytes+10_000, "broker"
	case w.chance(0.0003):
		info.Poison = "effect"
	}
	e.Payload = w.payload(info.Business, info.Poison, size)
	info.ID, info.Tenant, info.Topic, info.Key, info.Digest = e.ID, e.Tenant, e.Topic, e.Key, history.Digest(e.Payload)
	b.events, b.infos = append(b.events, e), append(b.infos, info)
}

// newID returns a v7 id by a clock that may be wrong.
func (w *writer) newID() uuid.UUID {
	if w.ClockOffset != 0 && w.chance(0.02) {
		return event.IDAt(time.Now().Add(w.ClockOffset))
	}
	return event.NewID()
}

// commit runs a transaction and records the outcome.
func (w *writer) commit(ctx context.Context, b *batch) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionLimit)
	defer cancel()
	var op int64
	var err error
	if b.viaSQL {
		op, err = w.transactSQL(ctx, b)
	} else {
		op, err = w.transact(ctx, b)
	}
	switch {
	case op == 0:
		// It failed before its COMMIT.
		_ = sleep.For(ctx, 20*time.Millisecond)
	case err == nil:
		w.record(history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.OK})
	case errors.Is(err, errRollback) || !pgerr.CommitUnknown(err):
		w.record(history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.Failed, Err: err.Error()})
	default:
		w.record(history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.Unknown, Err: err.Error()})
	}
}

// transact returns op 0 when COMMIT was never sent.
func (w *writer) transact(ctx context.Context, b *batch) (op int64, err error) {
	tx, err := w.db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, key := range b.keys {
		var version int64
		if err := tx.QueryRow(ctx, nextVersions, key, b.count(key)).Scan(&version); err != nil {
			return 0, err
		}
		b.number(key, version)
	}
	if _, err := tx.Exec(ctx, recordAll, b.business()...); err != nil {
		return 0, err
	}
	if err := appender().Append(ctx, tx, b.events...); err != nil {
		return 0, err
	}
	op = w.record(history.Entry{Kind: history.KindAppend, Events: b.infos})
	if b.rollback {
		return op, errRollback
	}
	return op, tx.Commit(ctx)
}

func (w *writer) transactSQL(ctx context.Context, b *batch) (op int64, err error) {
	tx, err := w.sql.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	for _, key := range b.keys {
		var version int64
		if err := tx.QueryRowContext(ctx, nextVersions, key, b.count(key)).Scan(&version); err != nil {
			return 0, err
		}
		b.number(key, version)
	}
	if _, err := tx.ExecContext(ctx, recordAll, b.business()...); err != nil {
		return 0, err
	}
	if err := appender().AppendSQL(ctx, tx, b.events...); err != nil {
		return 0, err
	}
	op = w.record(history.Entry{Kind: history.KindAppend, Events: b.infos})
	if b.rollback {
		return op, errRollback
	}
	return op, tx.Commit()
}

func appender() outbox.Appender {
	return outbox.Appender{Source: "process", MaxPayload: -1, InboxWindow: -1}
}

// count returns the number of versions that an aggregate needs: one for each event with its key.
func (b *batch) count(key string) (n int64) {
	for i := range b.events {
		if b.events[i].Key == key {
			n++
		}
	}
	return n
}

// number assigns versions to an aggregate's events, up to last.
func (b *batch) number(key string, last int64) {
	next := last - b.count(key)
	for i := range b.events {
		e, info := &b.events[i], &b.infos[i]
		if e.Key == key {
			next++
			info.Version = next
		}
		e.Headers = map[string]string{
			tables.HeaderVersion:  strconv.FormatInt(info.Version, 10),
			tables.HeaderBusiness: info.Business,
		}
	}
}

// business returns the arguments of recordAll.
func (b *batch) business() []any {
	n := len(b.infos)
	ids, business, tenants, topics := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	keys, versions, scheduled, poison, digests := make([]string, n), make([]int64, n), make([]bool, n),
		make([]string, n), make([]int64, n)
	for i, e := range b.infos {
		ids[i], business[i], tenants[i], topics[i] = e.ID.String(), e.Business, e.Tenant, e.Topic
		keys[i], versions[i], scheduled[i], poison[i], digests[i] = e.Key, e.Version, e.Scheduled, e.Poison, e.Digest
	}
	return []any{ids, tenants, topics, keys, versions, business, scheduled, poison, digests}
}
