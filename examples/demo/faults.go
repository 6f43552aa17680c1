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

// faults breaks things while the payments are on their way, at places that depend on progress and not on time.
type faults struct {
	on      bool
	n       int // payments
	say     func(format string, args ...any)
	crew    *crew
	topic   *topic
	counter *counter

	mails     atomic.Int64
	hungUp    atomic.Int64 // mails that were taken without an answer
	armed     atomic.Bool  // the mail server may kill its client
	killMail  sync.Once
	mailAgain chan struct{} // closed when the email worker was killed

	charges   atomic.Int64
	killCards sync.Once
	cardAgain chan struct{} // closed when the payments API was killed
}

const (
	// hangUpEvery: of so many mails one is taken and gets no answer.
	hangUpEvery = 100
	// againEvery: of so many records one is delivered a second time.
	againEvery = 10
	// relayPause is how long a killed relay stays away; the other takes its lanes when their lease has run out.
	relayPause = time.Second
)

// mail is the mail server's decision. The email worker is killed while its mail is being taken: the provider has it,
// and nobody at the other end learns of it.
func (f *faults) mail(_ mailbox.Mail, attempt int) mailbox.Verdict {
	if !f.on || attempt > 1 {
		return mailbox.Accept
	}
	taken := f.mails.Add(1)
	if f.armed.Load() && taken*2 >= int64(f.n) {
		f.killMail.Do(func() {
			f.crew.kill("email")
			close(f.mailAgain)
		})
	}
	if taken%hangUpEvery == hangUpEvery/2 {
		f.hungUp.Add(1)
		return mailbox.AcceptAndDrop
	}
	return mailbox.Accept
}

// charged is called when the bank has booked a charge and has told nobody yet. Half-way the process that asked for it
// is killed: the bank has the money, and nobody at the other end knows.
func (f *faults) charged(cards.Charge) {
	if f.on && f.charges.Add(1)*2 >= int64(withCard(f.n)) {
		f.killCards.Do(func() {
			f.crew.kill("payments")
			close(f.cardAgain)
		})
	}
}

// run returns when everything was broken, and is up again.
func (f *faults) run(ctx context.Context) error {
	if !f.on {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.steps(ctx) })
	group.Go(func() error { // at once: its customers wait
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.cardAgain:
			return f.restart(ctx, "payments", rolePayments, 0)
		}
	})
	return group.Wait()
}

func (f *faults) steps(ctx context.Context) error {
	f.armed.Store(true)
	for _, step := range []struct {
		ripe func(c counts) bool
		do   func(ctx context.Context) error
	}{
		{func(c counts) bool { return c.booked*4 >= f.n }, f.again},
		{func(c counts) bool { return c.published*5 >= f.n*2 }, func(ctx context.Context) error {
			f.crew.kill("relay-1")
			return f.restart(ctx, "relay-1", roleRelay, relayPause)
		}},
		{func(c counts) bool { return c.booked*2 >= f.n }, func(ctx context.Context) error {
			f.crew.kill("ledger")
			return f.restart(ctx, "ledger", roleLedger, 0)
		}},
	} {
		if err := f.counter.await(ctx, step.ripe); err != nil {
			return err
		}
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.mailAgain:
		return f.restart(ctx, "email", roleEmail, 0)
	}
}

func (f *faults) restart(ctx context.Context, name, role string, after time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(after):
		return f.crew.start(name, role)
	}
}

// again delivers records a second time.
func (f *faults) again(ctx context.Context) error {
	if !f.on {
		return nil
	}
	n, err := f.topic.redeliver(ctx, againEvery)
	if err == nil {
		f.say("delivered %d records a second time", n)
	}
	return err
}
