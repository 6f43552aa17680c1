package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/bench/page"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

const (
	nameMany        = "1,000 events an Append, one caller"
	nameManyFour    = "1,000 events an Append, four callers"
	nameTogether    = "without, 32 writers, statements in a batch"
	nameQueue       = "with Queue, 32 writers, statements in a batch"
	nameNotify      = "with Append and pg_notify, 32 writers"
	nameRelayBeside = "with Append, 32 writers, a relay beside"
)

// accounts is the number of accounts that payments change.
const accounts = 10_000

// perAppend is the number of events in a large Append.
const perAppend = 1000

func nameWithout(writers int) string { return fmt.Sprintf("without, %d writers", writers) }
func nameWith(writers int) string    { return fmt.Sprintf("with Append, %d writers", writers) }

// appendCase measures what an event adds to the cost of a business transaction.
func appendCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("append", fmt.Sprintf("Transactions per second. A transaction begins, inserts a payment, updates one "+
		"of %d accounts, calls Append with one event of %d bytes and pg_notify where the row says so, and commits, "+
		"with one round trip per statement unless the row says batch. Each writer has its own connection and runs "+
		"for %v. p50 and p99 are those of a whole transaction. The rate of the large Appends is in events", accounts,
		payloadSize, o.live.tax))
	if err := s.exec(ctx, queryDropBusiness, queryAccounts, queryPayments, queryOpenAccounts); err != nil {
		return err
	}
	defer func() { _ = s.exec(context.WithoutCancel(ctx), queryDropBusiness, queryEmptyOutbox) }()
	listening, err := listen(ctx, s.pg.URL())
	if err != nil {
		return err
	}
	defer listening()
	writers := []int{1, 8, 32, 64}
	var all []appendKind
	for _, n := range writers {
		all = append(all, appendKind{nameWithout(n), n, 1, business}, appendKind{nameWith(n), n, 1, withEvent})
	}
	all = append(all, appendKind{nameTogether, 32, 1, businessBatch}, appendKind{nameQueue, 32, 1, withQueue})
	all = append(all, appendKind{nameNotify, 32, 1, withNotify}, appendKind{nameMany, 1, perAppend, manyEvents},
		appendKind{nameManyFour, 4, perAppend, manyEvents})
	for turn := range o.repeats + 1 {
		for _, one := range all {
			if err := s.exec(ctx, queryEmptyOutbox, queryEmptyPayments, queryResetAccounts,
				queryVacuumAccounts); err != nil {
				return err
			}
			f, err := s.write(ctx, one, "payments", o.live.tax)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			f.Turn = turn
			rep.add(f)
		}
	}
	for _, n := range writers {
		ratios := rep.ratios("append", nameWithout(n), nameWith(n))
		if n == 32 {
			rep.atMost("append", "time with / without Append, 32 writers", 1.3, ratios)
			continue
		}
		median, low, high := page.Spread(ratios)
		rep.printf("  time with / without Append, %d writers: %.2f (%.2f to %.2f)", n, median, low, high)
	}
	rep.atMost("append", "time with Queue / without, 32 writers, statements in a batch", 1.3,
		rep.ratios("append", nameTogether, nameQueue))
	rep.ratio("append", nameWith(64), nameWith(32), 0.9)
	rep.atLeast("append", nameMany, 100_000)
	return s.appendBeside(ctx, o, rep)
}

// appendBeside measures the same while a relay publishes the events and uses a part of the machine.
func (s *stack) appendBeside(ctx context.Context, o options, rep *report) error {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox, queryEmptyPayments, queryResetAccounts, queryVacuumAccounts); err != nil {
		return err
	}
	relays, stop, err := s.background(1, job{
		URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Pumps: o.pumps,
		Compression: o.compression,
	})
	if err != nil {
		return err
	}
	defer stop()
	if err := s.awaitShares(ctx, 1); err != nil {
		return err
	}
	f, err := s.write(ctx, appendKind{nameRelayBeside, 32, 1, withEvent}, topic, o.live.tax)
	if err != nil {
		return err
	}
	f.Turn = 1
	rep.add(f)
	a, err := relays[0].end()
	rep.printf("    the relay settled %d of %d events meanwhile", a.Settled, f.Events)
	return err
}

// appendKind is an alternative: a transaction that a number of writers repeat.
type appendKind struct {
	name    string
	writers int
	events  int // of one transaction, as far as the rate is concerned
	do      func(ctx context.Context, tx pgx.Tx, e []event.Event) error
}

// write runs the writers for a time.
func (s *stack) write(ctx context.Context, l appendKind, topic string, length time.Duration) (figure, error) {
	if l.events > 1 { // gigabytes of WAL: otherwise Postgres would start a checkpoint within a measurement
		if err := s.exec(ctx, queryCheckpoint); err != nil {
			return figure{}, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	times, errs := make([][]time.Duration, l.writers), make([]error, l.writers)
	ready.Add(l.writers)
	for w := range l.writers {
		done.Go(func() {
			times[w], errs[w] = l.writer(ctx, s.pg.URL(), topic, ready.Done, begin, length)
			if errs[w] != nil {
				cancel()
			}
		})
	}
	ready.Wait()
	wal, err := s.wal(ctx)
	before, own, began := serverCPU(), selfCPU(), time.Now()
	close(begin)
	done.Wait()
	took := since(began)
	if err := errors.Join(append(errs, err)...); err != nil {
		return figure{}, err
	}
	used, own := serverCPU().minus(before), selfCPU()-own
	after, err := s.wal(ctx)
	every := slices.Concat(times...)
	slices.Sort(every)
	n := float64(len(every) * l.events)
	return figure{
		Case: "append", Name: l.name, Events: int(n), Seconds: took, Rate: n / took, CPU: own * 1e6 / n,
		PostgresCPU: used.postgres * 1e6 / n, WALBytes: float64(after-wal) / n,
		P50: milliseconds(percentile(every, 0.5)), P99: milliseconds(percentile(every, 0.99)),
	}, err
}

// writer is one writer with its own connection. Statements are prepared before it calls ready.
func (l appendKind) writer(ctx context.Context, url, topic string, ready func(), begin <-chan struct{},
	length time.Duration,
) (times []time.Duration, err error) {
	said := sync.OnceFunc(ready)
	defer said()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	const sets = 20 // created once and reused
	set := events(topic, sets*l.events, payloads(sets))
	for i := range set {
		set[i].ID = [16]byte{} // Append makes one, as it does for most
	}
	once := func(i int) error {
		at := i % sets * l.events
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return l.do(ctx, tx, set[at:at+l.events]) })
	}
	for i := range 2 {
		if err := once(i); err != nil {
			return nil, err
		}
	}
	said()
	<-begin
	for until := time.Now().Add(length); ; {
		began := time.Now()
		if !began.Before(until) {
			return times, nil
		}
		if err := once(len(times)); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
}

// business is the business part of a transaction: one insert, one update.
func business(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	account, amount := rand.IntN(accounts), rand.IntN(100_000)
	if _, err := tx.Exec(ctx, queryPay, account, amount, "settled by card, invoice 2026-11"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, queryBook, account, amount)
	return err
}

func withEvent(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	if err := business(ctx, tx, e); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, e...)
}

func withNotify(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	if err := withEvent(ctx, tx, e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, queryNotify, e[0].Topic)
	return err
}

// businessBatch sends these two statements in one round trip.
func businessBatch(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	b := new(pgx.Batch)
	queueBusiness(b)
	return tx.SendBatch(ctx, b).Close()
}

func withQueue(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	b := new(pgx.Batch)
	queueBusiness(b)
	if err := outbox.Queue(ctx, b, e...); err != nil {
		return err
	}
	return tx.SendBatch(ctx, b).Close()
}

func queueBusiness(b *pgx.Batch) {
	account, amount := rand.IntN(accounts), rand.IntN(100_000)
	b.Queue(queryPay, account, amount, "settled by card, invoice 2026-11")
	b.Queue(queryBook, account, amount)
}

func manyEvents(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	return outbox.Append(ctx, tx, e...)
}

// listen starts a listener for pg_notify, since every user of it has one.
func listen(ctx context.Context, url string) (stop func(), err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, queryListen); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				break
			}
		}
		_ = conn.Close(context.WithoutCancel(ctx))
	}()
	return func() { cancel(); <-ended }, nil
}
