package guard_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/outcome"
)

// A payment: a local row, then a card provider. A retry gets the same answer, and the card is charged once.
func ExampleGuard_Run() {
	g, err := guard.New(memstore.New(memstore.Config{}), guard.Config{})
	if err != nil {
		panic(err)
	}
	charges := 0
	pay := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		id, err := op.Local(ctx, "payment", func(context.Context, guard.Call) ([]byte, error) {
			return []byte("p1"), nil // insert the payment, with the call's key under a unique constraint
		})
		if err != nil {
			return idempotency.Result{}, err
		}
		card, err := op.CallAs(ctx, "charge", "provider_payment_"+string(id), func(context.Context, guard.Call) ([]byte,
			error,
		) {
			charges++ // call the provider with the call's key
			return []byte("charge-1"), nil
		})
		if err != nil { // a refusal is Terminal: it is kept, and every retry gets this result
			return idempotency.Result{Code: 402, Body: []byte("declined")}, err
		}
		return idempotency.Result{Code: 201, Resource: string(id), Body: card}, nil
	}
	request := idempotency.Request{
		Key:         idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: "4d6f"},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: [32]byte{1}}, // of the validated command
		Input:       []byte(`{"amount":100,"currency":"EUR"}`),             // what recovery needs to go on
	}
	for range 2 {
		res, err := g.Run(context.Background(), request, pay)
		fmt.Println(res.Code, string(res.Body), res.Replayed, err)
	}
	request.Fingerprint.Sum[0] = 2 // another command under the same key
	_, err = g.Run(context.Background(), request, pay)
	fmt.Println(errors.Is(err, idempotency.ErrMismatch), charges)
	// Output:
	// 201 charge-1 false <nil>
	// 201 charge-1 true <nil>
	// true 1
}

// A trip of two bookings: the second one is refused, so the first one is undone.
func ExampleOp_Saga() {
	g, err := guard.New(memstore.New(memstore.Config{}), guard.Config{})
	if err != nil {
		panic(err)
	}
	book := func(what string) func(context.Context, guard.Call) ([]byte, error) {
		return func(context.Context, guard.Call) ([]byte, error) {
			fmt.Println("book", what)
			return []byte(what), nil
		}
	}
	res, err := g.Run(context.Background(), idempotency.Request{
		Key: idempotency.Key{Operation: "trip.book", Value: "t1"},
	},
		func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			err := op.Saga(ctx,
				guard.SagaStep{Name: "flight", Do: book("flight"), Undo: func(_ context.Context, _ guard.Call,
					data []byte,
				) error {
					fmt.Println("cancel", string(data))
					return nil
				}},
				guard.SagaStep{Name: "hotel", Do: func(context.Context, guard.Call) ([]byte, error) {
					return nil, outcome.Terminal("no_room", errors.New("no room"))
				}},
			)
			if err != nil {
				return idempotency.Result{Code: 409}, err
			}
			return idempotency.Result{Code: 201}, nil
		})
	fmt.Println(res.Code, res.Failure, err)
	// Output:
	// book flight
	// cancel flight
	// 409 no_room <nil>
}

// A phase of one's own, a call to a provider, and a last phase.
func ExampleOp_CallAs() {
	type provider interface {
		Charge(ctx context.Context, key string, amount int64) ([]byte, error)
	}
	type phase = func(context.Context, guard.Call) ([]byte, error)
	_ = func(ctx context.Context, g *guard.Guard, req idempotency.Request, insertPending, accept phase, bank provider,
		amount int64, declined idempotency.Result,
	) (idempotency.Result, error) {
		pay := func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			id, err := op.Local(ctx, "payment", insertPending) // its row: the key that it gets is unique
			if err != nil {
				return idempotency.Result{}, err
			}
			charge := func(ctx context.Context, c guard.Call) ([]byte, error) {
				// Terminal when the card is declined, Retryable when it is certain that nothing was charged.
				return bank.Charge(ctx, c.Key, amount)
			}
			receipt, err := op.CallAs(ctx, "charge", "provider_payment_"+string(id), charge)
			if err != nil {
				return declined, err // kept and replayed after a Terminal error, and ignored after any other
			}
			if _, err := op.Local(ctx, "accept", accept); err != nil { // the row, and its event
				return idempotency.Result{}, err
			}
			return idempotency.Result{Code: 201, Resource: string(id), Body: receipt}, nil
		}
		res, err := g.Run(ctx, req, pay) // req has an input (Fingerprinter.KeepInput), from which recovery goes on
		return res, err
	}
}
