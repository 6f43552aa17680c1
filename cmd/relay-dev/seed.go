package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay/operator"
)

// The shop's topics and types of events.
const (
	orders     = "orders"     // goes well, but for one customer
	stock      = "stock"      // its consumer halts
	invoices   = "invoices"   // has a lower limit than an invoice's size
	newsletter = "newsletter" // is paused
	shipments  = "shipments"  // has been given more partitions
	returns    = "returns"    // does not exist
)

const (
	orderEvery = 500 * time.Millisecond
	// badCustomer has no account: billing parks its events.
	badCustomer = "customer-13"
	// invoiceLimit is the topic's max.message.bytes.
	invoiceLimit = 2000
)

// shop appends orders until ctx ends, and runs two consumers of them. In a new folder it also makes trouble.
func (s *stack) shop(ctx context.Context, t *topics) error {
	for name, partitions := range map[string]int32{orders: 3, stock: 1, newsletter: 1, shipments: 2} {
		if err := t.create(ctx, name, partitions, nil); err != nil {
			return err
		}
	}
	if err := t.create(ctx, invoices, 1, map[string]string{"max.message.bytes": fmt.Sprint(invoiceLimit)}); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return s.consume(ctx, "billing", orders, inbox.Config{},
			func(_ context.Context, _ pgx.Tx, e event.Event) error {
				if e.Key == badCustomer {
					return outcome.Terminal("no_account", errors.New("this customer has no account"))
				}
				return nil
			})
	})
	g.Go(func() error {
		return s.consume(ctx, "warehouse", stock, inbox.Config{OnFailure: inbox.Halt},
			func(_ context.Context, _ pgx.Tx, e event.Event) error {
				if e.Type == "StockCounted" {
					return outcome.Terminal("negative_stock", errors.New("the count is below zero"))
				}
				return nil
			})
	})
	g.Go(func() error { return s.takeOrders(ctx) })
	g.Go(func() error { return s.makeTrouble(ctx, t) })
	return g.Wait()
}

// consume runs a consumer until ctx ends.
func (s *stack) consume(ctx context.Context, name, topic string, cfg inbox.Config, effect inbox.Effect) error {
	cfg.Logger = s.log
	in, err := inbox.New(s.db, name, cfg)
	if err != nil {
		return err
	}
	c, err := consumer.New(in.Each(effect), s.brokers, []string{topic}, consumer.Config{
		Logger: s.log,
		// At the next start the group does not wait long for a process that was killed.
		SessionTimeout: 6 * time.Second, HeartbeatInterval: time.Second,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return in.Run(ctx) })
	g.Go(func() error { return c.Run(ctx) })
	return g.Wait()
}

// takeOrders appends orders at irregular times.
func (s *stack) takeOrders(ctx context.Context) error {
	tick := time.NewTicker(orderEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		if err := s.append(ctx, s.orderOf(fmt.Sprintf("customer-%d", n%12), n)); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *stack) orderOf(customer string, n int) event.Event {
	return fact(orders, customer, "OrderPlaced",
		map[string]any{"customer": customer, "order": n, "amount": 100 + n%900})
}

// fact is an event of the shop.
func fact(topic, key, kind string, payload any) event.Event {
	e, err := event.NewJSON(event.Event{Topic: topic, Key: key, Type: kind}, payload)
	if err != nil {
		panic(err) // what is made here is JSON
	}
	e.Source = "shop"
	return e
}

func (s *stack) append(ctx context.Context, events ...event.Event) error {
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, events...) })
}

// trouble is a problem that the pages show.
type trouble struct {
	what string
	make func(ctx context.Context, s *stack, t *topics) error
}

var troubles = []trouble{
	{"invoices: one is larger than its topic takes; it is parked, and those of its key wait", tooLarge},
	{"returns: the topic does not exist; its events are held", noTopic},
	{"newsletter: a person paused it; its events are held", paused},
	{"shipments: the topic has more partitions than are pinned", grown},
	{"orders of " + badCustomer + ": billing cannot apply them; the key is parked", noAccount},
	{"orders: one has an id of next month, as of a wrong clock; billing quarantines it", tooFarAhead},
	{"stock: an event halts the partition of the consumer warehouse", halted},
	{"reminders that are due tomorrow: they can be cancelled", reminders},
	{"payment.create: the bank has not answered, and recovery has given up", unanswered},
}

// makeTrouble makes every trouble once for each folder.
func (s *stack) makeTrouble(ctx context.Context, t *topics) error {
	mark := filepath.Join(s.dir, "seeded")
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	var text strings.Builder
	for _, one := range troubles {
		if err := one.make(ctx, s, t); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("seeding %s: %w", one.what, err)
		}
		fmt.Fprintln(&text, "  "+one.what)
	}
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\nThe shop has trouble to look at and to mend:\n%s\n", &text)
	return nil
}

func tooLarge(ctx context.Context, s *stack, _ *topics) error {
	// Random bytes do not compress.
	var lines []string
	for range 2 * invoiceLimit / 36 {
		lines = append(lines, event.NewID().String())
	}
	return s.append(ctx, fact(invoices, "acme", "InvoiceIssued", map[string]any{"lines": lines}),
		fact(invoices, "acme", "InvoicePaid", map[string]any{"invoice": 1}),
		fact(invoices, "acme", "InvoiceClosed", map[string]any{"invoice": 1}),
		fact(invoices, "globex", "InvoiceIssued", map[string]any{"lines": []string{"one"}}))
}

func noTopic(ctx context.Context, s *stack, _ *topics) error {
	return s.append(ctx, fact(returns, "customer-1", "GoodsReturned", map[string]any{"order": 1}),
		fact(returns, "customer-2", "GoodsReturned", map[string]any{"order": 2}))
}

func paused(ctx context.Context, s *stack, _ *topics) error {
	o, err := operator.New(s.db, "", "shop")
	if err != nil {
		return err
	}
	if err := o.PauseTopic(ctx, newsletter, "the mail provider asks us to wait"); err != nil {
		return err
	}
	var letters []event.Event
	for n := range 20 {
		letters = append(letters, fact(newsletter, fmt.Sprintf("customer-%d", n), "LetterDue",
			map[string]any{"issue": 7}))
	}
	return s.append(ctx, letters...)
}

// grown waits until the first event has pinned the partition count.
func grown(ctx context.Context, s *stack, t *topics) error {
	o, err := operator.New(s.db, "", "shop")
	if err != nil {
		return err
	}
	if err := s.append(ctx, fact(shipments, "order-1", "OrderShipped", map[string]any{"order": 1})); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := o.Topics(ctx)
		if err != nil {
			return err
		}
		for _, topic := range list {
			if topic.Topic == shipments && topic.Partitions > 0 {
				return t.grow(ctx, shipments, 4)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func noAccount(ctx context.Context, s *stack, _ *topics) error {
	return s.append(ctx, s.orderOf(badCustomer, 1), s.orderOf(badCustomer, 2), s.orderOf(badCustomer, 3))
}

func tooFarAhead(ctx context.Context, s *stack, _ *topics) error {
	e := s.orderOf("customer-4", 0)
	e.ID = event.IDAt(time.Now().AddDate(0, 1, 0))
	return s.append(ctx, e)
}

func halted(ctx context.Context, s *stack, _ *topics) error {
	return s.append(ctx, fact(stock, "shelf-1", "StockMoved", map[string]any{"by": 3}),
		fact(stock, "shelf-2", "StockCounted", map[string]any{"left": -1}),
		fact(stock, "shelf-3", "StockMoved", map[string]any{"by": 1}))
}

func reminders(ctx context.Context, s *stack, _ *topics) error {
	var later []event.Event
	for n := range 3 {
		e := fact(orders, fmt.Sprintf("customer-%d", n), "ReminderDue", map[string]any{"order": n})
		e.NotBefore = time.Now().Add(24 * time.Hour)
		later = append(later, e)
	}
	return s.append(ctx, later...)
}

// unanswered leaves an operation with an unknown outcome that only a person can resolve.
func unanswered(ctx context.Context, s *stack, _ *topics) error {
	keys, err := pgstore.New(s.db, pgstore.Config{})
	if err != nil {
		return err
	}
	g, err := guard.New(keys, guard.Config{RecoverAfter: -1})
	if err != nil {
		return err
	}
	req, err := idempotency.NewRequest(idempotency.Key{Tenant: "shop", Operation: "payment.create", Value: "order-17"},
		map[string]any{"order": 17, "amount": 4900})
	if err != nil {
		return err
	}
	_, err = g.Run(ctx, req, func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		_, err := op.CallAs(ctx, "charge", "bank-order-17", func(context.Context, guard.Call) ([]byte, error) {
			return nil, errors.New("no answer")
		})
		return idempotency.Result{}, err
	})
	if !errors.Is(err, idempotency.ErrUnknown) {
		return err
	}
	handlers := map[string]recovery.Handler{"payment.create": {}}
	worker, err := recovery.New(keys, handlers, recovery.Config{Grace: -1, Parallel: 20})
	if err != nil {
		return err
	}
	_, err = worker.Once(ctx)
	return err
}
