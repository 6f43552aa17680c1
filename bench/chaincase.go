package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/outbox"
)

// The chain has three processes: one appends payments, a relay publishes them, and the worker of examples/ledger books
// two entries for each.
const (
	nameChain    = "the whole chain, payments"
	nameAppender = "- its appender"
	nameOfRelay  = "- its relay"
	nameWorker   = "- its worker"
	chainBatch   = 100 // payments of a transaction of the appender
	chainCallers = 4   // of Append, at a time
)

// chainCase measures the time from the start of the three processes until the last payment is in the ledger.
func chainCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("chain", fmt.Sprintf("%d payments of %d bytes. %d concurrent transactions append %d events each, one "+
		"relay publishes them, and the worker of examples/ledger books two entries for each payment. The time is from "+
		"the start of the processes to the last entry", o.chain, payloadSize, chainCallers,
		chainBatch))
	prefix, err := pgschema.Prefix("public")
	if err != nil {
		return err
	}
	for _, ddl := range ledger.Tables().DDL {
		if err := s.exec(ctx, pgschema.Expand(ddl, prefix)); err != nil {
			return err
		}
	}
	// Each takes a quarter of a minute.
	for turn := range min(o.repeats, 3) + 1 {
		all, err := s.chainOnce(ctx, o)
		if err != nil {
			return err
		}
		for _, f := range all {
			f.Case, f.Turn = "chain", turn
			rep.add(f)
		}
	}
	rep.atLeast("chain", nameChain, 20_000)
	rep.peaks("chain", "relay", nameOfRelay)
	rep.peaks("chain", "worker", nameWorker)
	return s.exec(ctx, queryEmptyChain)
}

func (s *stack) chainOnce(ctx context.Context, o options) ([]figure, error) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyChain, queryCheckpoint); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	names := []string{nameAppender, nameOfRelay, nameWorker}
	answers := make([]answer, len(names))
	ended := make(chan error, len(names))
	before, began := serverCPU(), time.Now()
	for i, kind := range []string{"append", "relay", "worker"} {
		go func() {
			a, err := child(ctx, job{
				Kind: kind, URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Events: o.chain, Pumps: o.pumps,
				ClaimEvents: o.claimEvents, Compression: o.compression,
			})
			if answers[i] = a; err != nil {
				cancel(err)
			}
			ended <- err
		}()
	}
	for range names {
		<-ended
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	used, n := serverCPU().minus(before), float64(o.chain)
	took := answers[2].Ended.Sub(began).Seconds()
	out := []figure{{
		Name: nameChain, Events: o.chain, Seconds: took, Rate: n / took,
		PostgresCPU: used.postgres * 1e6 / n, KafkaCPU: used.kafka * 1e6 / n,
	}}
	for i, a := range answers {
		f := figure{
			Name: names[i], Events: o.chain, Seconds: a.Seconds, Rate: n / a.Seconds, PeakKiB: a.PeakKiB,
			CPU: a.CPU * 1e6 / n,
		}
		f.Claim, f.Publish, f.Settle = a.Claim, a.Publish, a.Settle
		out[0].CPU += f.CPU
		out = append(out, f)
	}
	return out, nil
}

// appendChild appends payments in large transactions.
func appendChild(ctx context.Context, j job) (a answer, err error) {
	pool, err := pgxpool.New(ctx, j.URL)
	if err != nil {
		return a, err
	}
	defer pool.Close()
	filler := payloads(1000)
	started := time.Now()
	err = inParallel(ctx, chainCallers, j.Events, chainBatch, func(ctx context.Context, n int) error {
		all := make([]event.Event, n)
		for i := range all {
			all[i] = payment(j.Topic, filler[rand.IntN(len(filler))])
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, all...) })
	})
	a.Seconds = since(started)
	return a, err
}

// payment returns a payment for the ledger, padded to the common size.
func payment(topic string, filler []byte) event.Event {
	account := fmt.Sprintf("acc-%d", rand.IntN(keys))
	b := fmt.Appendf(make([]byte, 0, payloadSize),
		`{"payment_id":"%s","account_id":"%s","amount":%d,"currency":"EUR","note":"one of the payments of a chain: `,
		event.NewID(), account, 1+rand.IntN(1_000_000))
	return event.Event{
		ID: event.NewID(), Source: "payments", Topic: topic, Key: account, Type: "PaymentCreated",
		ContentType: event.ContentTypeJSON, Payload: append(b, filler[len(b):]...),
	}
}

// workerChild runs the worker of examples/ledger until all payments are booked, each in two entries.
func workerChild(ctx context.Context, j job) (a answer, err error) {
	pool, err := pgxpool.New(ctx, j.URL)
	if err != nil {
		return a, err
	}
	defer pool.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started, ended, parked := time.Now(), make(chan error, 1), make(chan error, 1)
	cfg := ledger.Config{
		DB: pool, Schema: "public", Brokers: j.Brokers, Topic: j.Topic, Group: "ledger-" + j.Topic,
		Listen: "off", Logger: quiet(),
	}
	cfg.Inbox.Observer.Parked = func(p inbox.ParkedInfo) {
		select {
		case parked <- p.Err:
		default:
		}
	}
	go func() { ended <- ledger.Run(ctx, cfg) }()
	for booked, want := 0, 2*j.Events; booked < want; {
		select {
		case err := <-ended:
			return a, errors.Join(errors.New("the worker ended"), err)
		case err := <-parked:
			return a, errors.Join(errors.New("a payment is parked"), err)
		case <-time.After(20 * time.Millisecond):
		}
		err := pool.QueryRow(ctx, queryBookedAtMost).Scan(&booked)
		if err == nil && booked >= want {
			err = pool.QueryRow(ctx, queryBooked).Scan(&booked)
			a.Ended = time.Now()
		}
		if err != nil {
			return a, err
		}
	}
	a.Seconds = a.Ended.Sub(started).Seconds()
	cancel()
	return a, <-ended
}
