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

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

const (
	nameWithout  = "without, 32 writers"
	nameWith     = "with Append, 32 writers"
	nameByHand   = "with the smallest outbox by hand, 32 writers"
	nameMore     = "with Append, 64 writers"
	nameTogether = "without, 32 writers, statements in a batch"
	nameQueue    = "with Queue, 32 writers, statements in a batch"
	nameMany     = "1,000 events an Append, one caller"

	accounts  = 10_000 // that payments change
	perAppend = 1000   // events of a large Append
)

// appendCase measures what an event adds to the cost of a business transaction.
func appendCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("append", fmt.Sprintf("Transactions per second. A transaction begins, inserts a payment, updates one "+
		"of %d accounts, calls Append with one event of %d bytes where the row says so, and commits, with one round "+
		"trip per statement unless the row says batch. Each writer has its own connection and runs for %v. p50 and "+
		"p99 are those of a whole transaction. The rate of the large Append is in events", accounts, payloadSize,
		o.append))
	if err := s.exec(ctx, queryAccounts, queryPayments, querySmallOutbox, queryOpenAccounts); err != nil {
		return err
	}
	for turn := range o.repeats + 1 {
		for _, one := range []appendKind{
			{"without, 1 writer", 1, 1, business},
			{"with Append, 1 writer", 1, 1, withEvent},
			{nameWithout, 32, 1, business},
			{nameWith, 32, 1, withEvent},
			{nameByHand, 32, 1, withRow},
			{nameMore, 64, 1, withEvent},
			{nameTogether, 32, 1, businessBatch},
			{nameQueue, 32, 1, withQueue},
			{nameMany, 1, perAppend, manyEvents},
		} {
			if err := s.exec(ctx, queryEmptyOutbox, queryEmptyPayments, queryResetAccounts,
				queryVacuumAccounts); err != nil {
				return err
			}
			f, err := s.write(ctx, one, o.append)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			f.Case, f.Turn = "append", turn
			rep.add(f)
		}
	}
	rep.atMost("append", "time with / without Append, 32 writers", 1.3, rep.ratios("append", nameWithout, nameWith))
	rep.atMost("append", "time with Append / with the smallest outbox by hand, 32 writers", 1.05,
		rep.ratios("append", nameByHand, nameWith))
	rep.atMost("append", "time with Queue / without, 32 writers, statements in a batch", 1.2,
		rep.ratios("append", nameTogether, nameQueue))
	rep.ratio("append", nameMore, nameWith, 0.9)
	rep.atLeast("append", nameMany, 100_000)
	return nil
}

// appendKind is an alternative: a transaction that a number of writers repeat.
type appendKind struct {
	name    string
	writers int
	events  int // of one transaction, as far as the rate is concerned
	do      func(ctx context.Context, tx pgx.Tx, e []event.Event) error
}

// write runs the writers for a time.
func (s *stack) write(ctx context.Context, l appendKind, length time.Duration) (figure, error) {
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
			times[w], errs[w] = l.writer(ctx, s.pg.URL(), ready.Done, begin, length)
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
		Name: l.name, Events: int(n), Seconds: took, Rate: n / took, CPU: own * 1e6 / n,
		PostgresCPU: used.postgres * 1e6 / n, WALBytes: float64(after-wal) / n,
		P50: milliseconds(percentile(every, 0.5)), P99: milliseconds(percentile(every, 0.99)),
	}, err
}

// writer is one writer with its own connection. Statements are prepared before it calls ready.
func (l appendKind) writer(ctx context.Context, url string, ready func(), begin <-chan struct{}, length time.Duration) (
	times []time.Duration, err error,
) {
	said := sync.OnceFunc(ready)
	defer said()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	const sets = 20 // created once and reused
	set := events("payments", sets*l.events, payloads(sets))
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

// withRow inserts the payload of the event into a table with a key, and nothing else.
func withRow(ctx context.Context, tx pgx.Tx, e []event.Event) error {
	if err := business(ctx, tx, e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, querySmallAppend, e[0].Payload)
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
