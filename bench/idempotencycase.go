package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/bench/page"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
)

const (
	nameReplays = "InTx, replays, 16 callers"
	nameByHand  = "a key by hand, 16 callers"
	nameClaimed = "a guard's Claim and Finish, 16 callers"
	nameReRead  = "a guard's Claim of what is done, 16 callers"
)

func nameNoKey(callers int) string { return fmt.Sprintf("no key, %d callers", callers) }
func nameInTx(callers int) string  { return fmt.Sprintf("InTx, %d callers", callers) }

// replayed is the number of keys that are replayed in turn.
const replayed = 1000

// idempotencyCase measures what a key adds to a handler, in time and round trips, and how fast a replay is.
func idempotencyCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("idempotency", fmt.Sprintf("Requests per second. A handler inserts a payment, updates one of %d "+
		"accounts, appends an event, commits, and answers %d bytes. InTx adds the key and stores the answer. By "+
		"hand means that the key's row is inserted first and updated last, each in a separate statement. Each row "+
		"runs for %v", accounts, payloadSize, o.live.tax))
	if err := s.exec(ctx, queryDropBusiness, queryAccounts, queryPayments, queryOpenAccounts,
		queryKeysByHand); err != nil {
		return err
	}
	defer func() {
		_ = s.exec(context.WithoutCancel(ctx), queryDropBusiness, queryEmptyOutbox, queryEmptyKeys, queryDropKeysByHand)
	}()
	e, err := s.newEdge(ctx)
	if err != nil {
		return err
	}
	defer e.pool.Close()
	kinds := []requests{
		{nameNoKey(1), 1, e.withoutKey},
		{nameInTx(1), 1, e.inTx},
		{nameNoKey(16), 16, e.withoutKey},
		{nameInTx(16), 16, e.inTx},
		{nameByHand, 16, e.byHand},
		{nameReplays, 16, e.replay},
		{nameClaimed, 16, e.claimed},
		{nameReRead, 16, e.claimDone},
	}
	if err := e.turns(ctx, o, rep, "idempotency", kinds, e.fill); err != nil {
		return err
	}
	// One caller waits for round trips and the WAL; sixteen saturate the machine, so that a key costs as much as its
	// row in a hand-written table.
	rep.atMost("idempotency", "time with InTx / without a key, 1 caller", 1.3, rep.ratios("idempotency", nameNoKey(1),
		nameInTx(1)))
	rep.atMost("idempotency", "time with InTx / with a key by hand, 16 callers", 1.3,
		rep.ratios("idempotency", nameByHand, nameInTx(16)))
	median, low, high := page.Spread(rep.ratios("idempotency", nameNoKey(16), nameInTx(16)))
	rep.printf("  time with InTx / without a key, 16 callers: %.2f (%.2f to %.2f)", median, low, high)
	trips := func(f figure) float64 { return f.RoundTrips }
	with, without := rep.pick("idempotency", nameInTx(1), trips), rep.pick("idempotency", nameNoKey(1), trips)
	var more []float64
	for i := range with {
		more = append(more, with[i]-without[i])
	}
	rep.atMost("idempotency", "round trips that InTx adds", 1, more)
	rep.atLeast("idempotency", nameReplays, 5000)
	return nil
}

// edge is a service with its store and a pool that counts round trips.
type edge struct {
	*stack
	pool  *pgxpool.Pool
	store *pgstore.Store
	trips atomic.Int64
	body  []byte
	known []idempotency.Request // to be replayed
}

func (s *stack) newEdge(ctx context.Context) (*edge, error) {
	e := &edge{stack: s, body: payloads(1)[0]}
	cfg, err := pgxpool.ParseConfig(s.pg.URL())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = 16, 16
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &counted{Conn: conn, trips: &e.trips}, err
	}
	if e.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if e.store, err = pgstore.New(e.pool, pgstore.Config{Schema: "public"}); err != nil {
		e.pool.Close()
		return nil, err
	}
	for range replayed {
		e.known = append(e.known, newRequest())
	}
	return e, nil
}

// turns measures all kinds in each turn, on tables of the same age. The table of keys has some rows, because a vacuum
// of an empty table leads to plans with sequential scans.
func (e *edge) turns(ctx context.Context, o options, rep *report, name string, kinds []requests,
	fill func(context.Context) error,
) error {
	for turn := range o.repeats + 1 {
		for _, k := range kinds {
			if err := e.exec(ctx, queryEmptyOutbox, queryEmptyPayments, queryResetAccounts, queryVacuumAccounts,
				queryEmptyKeys); err != nil {
				return err
			}
			if err := fill(ctx); err != nil {
				return err
			}
			if err := e.exec(ctx, queryVacuumKeys, queryCheckpoint); err != nil {
				return err
			}
			f, err := e.serve(ctx, k, o.live.tax)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			f.Case, f.Turn = name, turn
			rep.add(f)
		}
	}
	return nil
}

// counted counts how often a connection changes from writing to reading.
type counted struct {
	net.Conn
	trips *atomic.Int64
	wrote atomic.Bool // atomic: a long write overlaps reads
}

func (c *counted) Write(b []byte) (int, error) {
	c.wrote.Store(true)
	return c.Conn.Write(b)
}

func (c *counted) Read(b []byte) (int, error) {
	if c.wrote.Swap(false) {
		c.trips.Add(1)
	}
	return c.Conn.Read(b)
}

func newRequest() idempotency.Request {
	return idempotency.Request{
		Key:         idempotency.Key{Tenant: "bench", Operation: "payment.create", Value: rand.Text()},
		Fingerprint: idempotency.Fingerprint{Version: 1},
	}
}

// handle is the handler, in the caller's transaction.
func (e *edge) handle(ctx context.Context, tx pgx.Tx) (idempotency.Result, error) {
	one := event.Event{
		Topic: "payments", Key: "acc", Type: "PaymentCreated", ContentType: event.ContentTypeJSON,
		Payload: e.body,
	}
	return idempotency.Result{
		Code: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: e.body,
	}, withEvent(ctx, tx, []event.Event{one})
}

func (e *edge) withoutKey(ctx context.Context, _ int) error {
	return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		_, err := e.handle(ctx, tx)
		return err
	})
}

func (e *edge) inTx(ctx context.Context, _ int) error {
	_, err := e.store.InTx(ctx, newRequest(), e.handle)
	return err
}

func (e *edge) byHand(ctx context.Context, _ int) error {
	return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		k := rand.Text()
		if _, err := tx.Exec(ctx, queryInsertKey, k); err != nil {
			return err
		}
		res, err := e.handle(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, queryCompleteKey, k, res.Code, res.Body)
		return err
	})
}

// fill runs the requests that are replayed later.
func (e *edge) fill(ctx context.Context) error {
	return inParallel(ctx, 16, replayed, 50, e.answerSome())
}

func (e *edge) answerSome() func(ctx context.Context, n int) error {
	var next atomic.Int64
	return func(ctx context.Context, n int) error {
		for range n {
			if _, err := e.store.InTx(ctx, e.known[next.Add(1)-1], e.handle); err != nil {
				return err
			}
		}
		return nil
	}
}

func (e *edge) replay(ctx context.Context, i int) error {
	res, err := e.store.InTx(ctx, e.known[i%replayed], e.handle)
	if err == nil && !res.Replayed {
		err = errors.New("a request that was answered ran again")
	}
	return err
}

func (e *edge) claimed(ctx context.Context, _ int) error {
	c, err := e.store.Claim(ctx, newRequest(), store.ClaimOptions{Token: rand.Text(), Lease: time.Minute})
	if err != nil {
		return err
	}
	return e.store.Finish(ctx, c.Lease, idempotency.Result{Code: 201, Body: e.body}, idempotency.Retention{})
}

func (e *edge) claimDone(ctx context.Context, i int) error {
	c, err := e.store.Claim(ctx, e.known[i%replayed], store.ClaimOptions{Token: rand.Text(), Lease: time.Minute})
	if err == nil && (c.Won || c.Record.State != idempotency.Completed) {
		err = fmt.Errorf("a key that is done was claimed as %s", c.Record.State)
	}
	return err
}

// requests is an alternative: a request that a number of callers repeat.
type requests struct {
	name    string
	callers int
	do      func(ctx context.Context, i int) error
}

// serve runs the callers for a time.
func (e *edge) serve(ctx context.Context, k requests, length time.Duration) (figure, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wal, err := e.wal(ctx)
	if err != nil {
		return figure{}, err
	}
	times := make([][]time.Duration, k.callers)
	var wg sync.WaitGroup
	trips, before, own, began := e.trips.Load(), serverCPU(), selfCPU(), time.Now()
	for c := range k.callers {
		wg.Go(func() {
			for i := c; ctx.Err() == nil; i += k.callers {
				at := time.Now()
				if at.Sub(began) >= length {
					return
				}
				if err := k.do(ctx, i); err != nil {
					cancel(err)
					return
				}
				times[c] = append(times[c], time.Since(at))
			}
		})
	}
	wg.Wait()
	took := since(began)
	used, own, trips := serverCPU().minus(before), selfCPU()-own, e.trips.Load()-trips
	if err := context.Cause(ctx); err != nil {
		return figure{}, err
	}
	after, err := e.wal(ctx)
	every := slices.Concat(times...)
	slices.Sort(every)
	n := float64(len(every))
	return figure{
		Case: "idempotency", Name: k.name, Events: len(every), Seconds: took, Rate: n / took, CPU: own * 1e6 / n,
		PostgresCPU: used.postgres * 1e6 / n, WALBytes: float64(after-wal) / n,
		P50: milliseconds(percentile(every, 0.5)), P99: milliseconds(percentile(every, 0.99)),
		RoundTrips: float64(trips) / n,
	}, err
}
