package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// run is the demo. before may be nil.
func run(ctx context.Context, f flags, out io.Writer, before tamper) error {
	tell := newTeller(out, f.Payments)
	broken := &faults{
		on: f.Faults, n: f.Payments, say: tell.say, mailAgain: make(chan struct{}),
		cardAgain: make(chan struct{}),
	}
	s, err := openStack(ctx, f, tell.say, broken)
	if err != nil {
		return err
	}
	defer s.close()
	hands, err := newCrew(s.dir, s.places, tell.say)
	if err != nil {
		return err
	}
	// The servers are the last to go.
	defer hands.stop()
	defer tell.end()
	buyers := newCustomers(s.api, "http://"+s.places.CardAPI+"/payments", f.Payments, f.Rate, f.Faults)
	broken.crew, broken.topic, broken.counter = hands, s.topic, newCounter(s.db, s.prefix, &buyers.paid)
	for _, c := range []struct{ name, role string }{
		{"relay-1", roleRelay},
		{"relay-2", roleRelay},
		{"ledger", roleLedger},
		{"email", roleEmail},
		{"payments", rolePayments},
	} {
		if err := hands.start(c.name, c.role); err != nil {
			return err
		}
	}
	tell.say("servers are up; two relays, the ledger, the email worker and a payments API with cards are starting")
	tell.begin()
	if err := work(ctx, s, buyers, broken, tell); err != nil {
		return err
	}
	tell.end()
	if before != nil {
		if err := before(ctx, s, s.evidence(buyers)); err != nil {
			return err
		}
	}
	r, err := reconcile(ctx, s.evidence(buyers))
	if err != nil {
		return fmt.Errorf("counting what became of the payments: %w", err)
	}
	r.notes = fmt.Sprintf("%d mails were taken by a server that hung up before it said so", broken.hungUp.Load())
	r.print(out)
	if f.Keep {
		keep(ctx, s, hands, out)
	}
	if len(r.differ) > 0 {
		return errDiffer
	}
	return nil
}

// work makes the payments and the faults, and returns when nothing is on its way any more.
func work(ctx context.Context, s *stack, buyers *customers, broken *faults, tell *teller) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	finished := errors.New("finished")
	watch, _ := errgroup.WithContext(ctx)
	watch.Go(func() error {
		select {
		case <-ctx.Done():
		case err := <-s.lost:
			cancel(err)
		case err := <-broken.crew.lost:
			cancel(err)
		}
		return nil
	})
	watch.Go(func() error {
		if err := broken.counter.run(ctx, tell.show); err != nil {
			cancel(err)
		}
		return nil
	})
	err := steps(ctx, s, buyers, broken, tell)
	// Whoever ended ctx knows the reason better than those who were ended by it.
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(finished)
	_ = watch.Wait()
	return err
}

func steps(ctx context.Context, s *stack, buyers *customers, broken *faults, tell *teller) error {
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := buyers.run(both); err != nil {
			return err
		}
		tell.say("made %d payments; %d requests that came twice got the first one's answer", buyers.paid.Load(),
			buyers.replays.Load())
		return nil
	})
	group.Go(func() error { return broken.run(both) })
	if err := group.Wait(); err != nil {
		return err
	}
	if err := quiet(ctx, s, broken); err != nil {
		return err
	}
	// Once more, when everything is long done.
	if err := broken.again(ctx); err != nil {
		return err
	}
	return quiet(ctx, s, broken)
}

// quiet returns when the outbox is empty, both groups have committed everything, and no mail is owed.
func quiet(ctx context.Context, s *stack, broken *faults) error {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		now, err := broken.counter.look(ctx)
		if err != nil {
			return err
		}
		done := now.left == 0
		for _, group := range []string{s.places.LedgerGroup, s.places.EmailGroup} {
			if done {
				// An error is a broker that is busy with the group; whoever is stuck is found out by the counter.
				done, err = s.topic.committed(ctx, group)
				done = done && err == nil
			}
		}
		// Owed mails are looked at last: their rows come before the offsets.
		if done {
			if now, err = broken.counter.look(ctx); err != nil {
				return err
			}
			if now.left == 0 && now.unsent == 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// keep says where everything is, and waits for a signal.
func keep(ctx context.Context, s *stack, hands *crew, out io.Writer) {
	fmt.Fprintf(out, `
Everything stays up until Ctrl-C:
  payments   curl -H 'Idempotency-Key: mine-1' -d '{"account_id":"me","amount":100,"currency":"EUR"}' %s
  postgres   %s  (schema %s)
  kafka      %s  (topic %s, groups %s and %s)
  mail       %s, asked at %s
  logs       %s
`, s.api, s.places.DatabaseURL, s.places.Schema, strings.Join(s.places.Brokers, ","), s.places.Topic,
		s.places.LedgerGroup, s.places.EmailGroup, s.places.SMTPAddr, s.places.MailLookup, s.dir)
	select {
	case <-ctx.Done():
	case err := <-hands.lost:
		fmt.Fprintln(out, err)
	case err := <-s.lost:
		fmt.Fprintln(out, err)
	}
}
