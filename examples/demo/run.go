package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/cmd/devstack"
)

// run runs the demo. beforeReconcile may be nil.
func run(ctx context.Context, f flags, out io.Writer, beforeReconcile tamper) error {
	display := newDisplay(out, f.Payments)
	faults := &faults{
		on: f.Faults, n: f.Payments, printf: display.printf, emailKilled: make(chan struct{}),
		paymentsKilled: make(chan struct{}),
	}
	s, err := openStack(ctx, f, display.printf, faults)
	if err != nil {
		return err
	}
	defer s.close()
	children, err := newChildren(s.dir, s.settings, display.printf)
	if err != nil {
		return err
	}
	defer children.stop() // before the servers
	defer display.hideBar()
	customers := newCustomers(s.api, "http://"+s.settings.CardAPI+"/payments", f.Payments, f.Rate, f.Faults)
	faults.children, faults.topic, faults.counter = children, s.topic, newCounter(s.db, s.prefix, &customers.paid)
	for _, c := range []struct{ name, role string }{
		{"relay-1", roleRelay},
		{"relay-2", roleRelay},
		{"ledger", roleLedger},
		{"email", roleEmail},
		{"payments", rolePayments},
	} {
		if err := children.start(c.name, c.role); err != nil {
			return err
		}
	}
	var play *play
	if f.Keep {
		if play, err = openPlay(ctx, f, s, children, customers, display); err != nil {
			return err
		}
		defer play.close()
		display.printf("the page is at %s", play.url)
		devstack.OpenBrowser(out, play.url)
	}
	display.printf("servers are up; starting two relays, the ledger, the email worker and a payments API with cards")
	display.showBar()
	if err := runAndWatch(ctx, s, customers, faults, display); err != nil {
		return err
	}
	display.hideBar()
	if beforeReconcile != nil {
		if err := beforeReconcile(ctx, s, s.evidence(customers)); err != nil {
			return err
		}
	}
	r, err := reconcile(ctx, s.evidence(customers))
	if err != nil {
		return fmt.Errorf("reconciling the results: %w", err)
	}
	r.notes = fmt.Sprintf("%d mails were accepted without a reply", faults.hungUp.Load())
	r.print(out)
	switch {
	case f.Keep:
		play.free()
		if err := keep(ctx, s, play, out); err != nil {
			return err
		}
	case !devstack.IsTerminal(out):
		fmt.Fprintln(out, "No page was kept open, because the output is no terminal: -keep keeps it.")
	}
	if len(r.differences) > 0 {
		return errDiffer
	}
	return nil
}

// runAndWatch runs the traffic, and fails early when a server or a child ends or the counts stop changing.
func runAndWatch(ctx context.Context, s *stack, customers *customers, faults *faults, display *display) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	finished := errors.New("finished")
	watch, _ := errgroup.WithContext(ctx)
	watch.Go(func() error {
		select {
		case <-ctx.Done():
		case err := <-s.failed:
			cancel(err)
		case err := <-faults.children.failed:
			cancel(err)
		}
		return nil
	})
	watch.Go(func() error {
		if err := faults.counter.run(ctx, display.update); err != nil {
			cancel(err)
		}
		return nil
	})
	err := runTraffic(ctx, s, customers, faults, display)
	// The cause of the cancellation explains more than an error that comes of it.
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(finished)
	_ = watch.Wait()
	return err
}

// runTraffic makes the payments, injects the faults, and waits until everything is processed.
func runTraffic(ctx context.Context, s *stack, customers *customers, faults *faults, display *display) error {
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := customers.run(both); err != nil {
			return err
		}
		display.printf("made %d payments; %d repeated requests got the first answer", customers.paid.Load(),
			customers.replays.Load())
		return nil
	})
	group.Go(func() error { return faults.run(both) })
	if err := group.Wait(); err != nil {
		return err
	}
	if err := awaitIdle(ctx, s, faults); err != nil {
		return err
	}
	// Redeliver once more, after everything was processed.
	if err := faults.redeliver(ctx); err != nil {
		return err
	}
	return awaitIdle(ctx, s, faults)
}

// awaitIdle waits until the outbox is empty, both groups have committed all offsets, and all mails are sent.
func awaitIdle(ctx context.Context, s *stack, faults *faults) error {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		now, err := faults.counter.count(ctx)
		if err != nil {
			return err
		}
		done := now.unpublished == 0
		for _, group := range []string{s.settings.LedgerGroup, s.settings.EmailGroup} {
			if done {
				// On an error try again: the group may be rebalancing. The counter notices a lasting failure.
				done, err = s.topic.committed(ctx, group)
				done = done && err == nil
			}
		}
		// Count unsent mails last: their rows are written before the offsets.
		if done {
			if now, err = faults.counter.count(ctx); err != nil {
				return err
			}
			if now.unpublished == 0 && now.unsent == 0 {
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

// keep prints all addresses, and each new count, until a signal. Children that are killed from outside start again.
func keep(ctx context.Context, s *stack, play *play, out io.Writer) error {
	fmt.Fprintf(out, `
Everything stays up until Ctrl-C. Pay twice, kill a worker, take Kafka away, and count:
  the page   %s
  payments   curl -H 'Idempotency-Key: mine-1' -d '{"account_id":"me","amount":100,"currency":"EUR"}' %s
  postgres   %s  (schema %s)
  kafka      %s  (topic %s, groups %s and %s)
  mail       %s, lookup at %s
  logs       %s

`, play.url, s.api, s.settings.DatabaseURL, s.settings.Schema, strings.Join(s.settings.Brokers, ","), s.settings.Topic,
		s.settings.LedgerGroup, s.settings.EmailGroup, s.settings.SMTPAddr, s.settings.MailLookup, s.dir)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-tick.C:
			if err := play.children.revive(play.say); err != nil {
				return err
			}
			if now := play.line(ctx); now != last && now != "" {
				last = now
				fmt.Fprintln(out, now)
			}
		}
	}
}
