package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/payments/cards"
)

// faults injects faults when the payments have reached certain counts.
type faults struct {
	on       bool
	n        int // payments
	printf   func(format string, args ...any)
	children *children
	topic    *topic
	counter  *counter

	mails       atomic.Int64
	hungUp      atomic.Int64 // mails that were accepted without a reply
	armed       atomic.Bool  // the mail server may kill its client
	killEmail   sync.Once
	emailKilled chan struct{} // closed when the email worker was killed

	charges        atomic.Int64
	killPayments   sync.Once
	paymentsKilled chan struct{} // closed when the payments API was killed
}

const (
	hangUpEvery    = 100 // one mail in 100 is accepted without a reply
	redeliverEvery = 10  // one record in 10 is delivered a second time
	// relayPause is the time before a killed relay is started again. The other relay takes over its lanes when their
	// lease has expired.
	relayPause = time.Second
)

// mail decides for the mail server. Halfway it kills the email worker while its mail is being accepted, so that the
// worker cannot record the reply.
func (f *faults) mail(_ mailbox.Mail, attempt int) mailbox.Verdict {
	if !f.on || attempt > 1 {
		return mailbox.Accept
	}
	accepted := f.mails.Add(1)
	if f.armed.Load() && accepted*2 >= int64(f.n) {
		f.killEmail.Do(func() {
			f.children.kill("email")
			close(f.emailKilled)
		})
	}
	if accepted%hangUpEvery == hangUpEvery/2 {
		f.hungUp.Add(1)
		return mailbox.AcceptAndDrop
	}
	return mailbox.Accept
}

// charged is called when the bank has booked a charge, before it replies. Halfway it kills the payments process, which
// cannot record the charge then.
func (f *faults) charged(cards.Charge) {
	if f.on && f.charges.Add(1)*2 >= int64(withCard(f.n)) {
		f.killPayments.Do(func() {
			f.children.kill("payments")
			close(f.paymentsKilled)
		})
	}
}

// run injects all faults and returns when the killed processes are started again.
func (f *faults) run(ctx context.Context) error {
	if !f.on {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.steps(ctx) })
	group.Go(func() error { // without delay: customers are waiting
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.paymentsKilled:
			return f.restart(ctx, "payments", rolePayments, 0)
		}
	})
	return group.Wait()
}

func (f *faults) steps(ctx context.Context) error {
	f.armed.Store(true)
	for _, step := range []struct {
		reached func(c counts) bool
		do      func(ctx context.Context) error
	}{
		{func(c counts) bool { return c.booked*4 >= f.n }, f.redeliver},
		{func(c counts) bool { return c.published*5 >= f.n*2 }, func(ctx context.Context) error {
			f.children.kill("relay-1")
			return f.restart(ctx, "relay-1", roleRelay, relayPause)
		}},
		{func(c counts) bool { return c.booked*2 >= f.n }, func(ctx context.Context) error {
			f.children.kill("ledger")
			return f.restart(ctx, "ledger", roleLedger, 0)
		}},
	} {
		if err := f.counter.await(ctx, step.reached); err != nil {
			return err
		}
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.emailKilled:
		return f.restart(ctx, "email", roleEmail, 0)
	}
}

func (f *faults) restart(ctx context.Context, name, role string, after time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(after):
		return f.children.start(name, role)
	}
}

func (f *faults) redeliver(ctx context.Context) error {
	if !f.on {
		return nil
	}
	n, err := f.topic.redeliver(ctx, redeliverEvery)
	if err == nil {
		f.printf("delivered %d records a second time", n)
	}
	return err
}
