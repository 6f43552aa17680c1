package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/outcome"
)

// A payment with a card is made in phases, because no transaction may be open during the call to the provider:
//
//	ids       record the ids of payment and event
//	payment   insert the row, status pending
//	charge    call the provider; the key is derived from the payment's id
//	accept    set the status accepted and append the event, in one transaction
//
// After a crash the caller's retry or recovery continues after the last recorded phase. All phases but charge may run
// again; recovery asks the provider about a charge without an outcome.
const (
	stepIDs     = "ids"
	stepPayment = "payment"
	stepCharge  = "charge"
	stepAccept  = "accept"
	stepDecline = "decline"
)

// codeDeclined is the code of the only final refusal.
const codeDeclined = "card_declined"

// problemDeclined is the same in the API's problem.
const problemDeclined httpedge.Code = "CARD_DECLINED"

// cards makes payments with a card.
type cards struct {
	store    *store
	provider Provider
}

// pay runs the operation, or continues it after a crash.
func (c *cards) pay(ctx context.Context, op *guard.Op, tenant string, cmd command) (idempotency.Result, error) {
	var id ids
	if err := phase(ctx, op, stepIDs, &id, func(context.Context) (any, error) { return newIDs(), nil }); err != nil {
		return idempotency.Result{}, err
	}
	var createdAt time.Time
	err := phase(ctx, op, stepPayment, &createdAt, func(ctx context.Context) (any, error) {
		var at time.Time
		err := c.store.inTx(ctx, func(tx pgx.Tx) (err error) {
			at, err = c.store.insertRow(ctx, tx, tenant, id, cmd, statusPending)
			return err
		})
		return at, err
	})
	if err != nil {
		return idempotency.Result{}, err
	}
	reference, err := op.CallAs(ctx, stepCharge, chargeKey(id), func(ctx context.Context, call guard.Call) ([]byte,
		error,
	) {
		reference, err := c.provider.Charge(ctx, Charge{
			Key: call.Key, AccountID: cmd.AccountID, Amount: cmd.Amount,
			Currency: cmd.Currency,
		})
		return []byte(reference), err
	})
	switch class, _ := outcome.Of(err); {
	case err == nil:
	case class == outcome.ClassTerminal:
		return c.decline(ctx, op, id, err)
	default: // the key keeps the command and its phases, and the next attempt continues this payment
		return idempotency.Result{}, err
	}
	err = phase(ctx, op, stepAccept, nil, func(ctx context.Context) (any, error) {
		return nil, c.store.inTx(ctx, func(tx pgx.Tx) error {
			return c.accept(ctx, tx, tenant, id, cmd, string(reference))
		})
	})
	if err != nil {
		return idempotency.Result{}, err
	}
	return answer(id, cmd, createdAt)
}

// phase runs a local phase whose outcome is recorded as JSON.
func phase(ctx context.Context, op *guard.Op, name string, to any, do func(ctx context.Context) (any, error)) error {
	data, err := op.Local(ctx, name, func(ctx context.Context, _ guard.Call) ([]byte, error) {
		v, err := do(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(v)
	})
	if err != nil || to == nil {
		return err
	}
	return json.Unmarshal(data, to)
}

const chargePrefix = "provider_payment_"

// chargeKey is the key for the provider. It has the payment's id, because callers may reuse their keys after they have
// expired.
func chargeKey(id ids) string { return chargePrefix + id.Payment.String() }

// accept appends the event unless an earlier run of this phase did.
func (c *cards) accept(ctx context.Context, tx pgx.Tx, tenant string, id ids, cmd command, reference string) error {
	var at time.Time
	err := tx.QueryRow(ctx, c.store.accept, id.Payment.String(), reference).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("accepting the payment: %w", err)
	}
	return c.store.appendEvent(ctx, tx, tenant, id, cmd, at)
}

// decline records the final refusal, which replays return.
func (c *cards) decline(ctx context.Context, op *guard.Op, id ids, cause error) (idempotency.Result, error) {
	err := phase(ctx, op, stepDecline, nil, func(ctx context.Context) (any, error) {
		return nil, c.exec(ctx, c.store.decline, id.Payment.String())
	})
	if err != nil {
		return idempotency.Result{}, err
	}
	res, err := httpedge.JSON(http.StatusPaymentRequired, map[string]any{
		"type": "about:blank", "title": "Payment Required", "status": http.StatusPaymentRequired,
		"code":   problemDeclined,
		"detail": "the card was declined; for another attempt use a new Idempotency-Key",
	})
	if err != nil {
		return res, err
	}
	res.Header["Content-Type"] = []string{"application/problem+json"}
	res.Resource = id.Payment.String()
	return res, cause
}

func (c *cards) exec(ctx context.Context, sql string, args ...any) error {
	_, err := c.store.db.Exec(ctx, sql, args...)
	return err
}

// handler lets recovery ask the provider about a charge and continue the payment.
func (c *cards) handler() recovery.Handler {
	return recovery.Handler{
		Rerun: true, // the first phase makes ids, and has no effect
		Probe: func(ctx context.Context, q recovery.ProbeRequest) (recovery.ProbeResult, error) {
			found, err := c.provider.Find(ctx, q.Key)
			switch class, code := outcome.Of(err); {
			case class == outcome.ClassTerminal:
				return recovery.ProbeResult{Outcome: recovery.Refused, Code: code, Text: err.Error()}, nil
			case err != nil:
				return recovery.ProbeResult{}, err
			case found == "":
				// Nobody asks before settled is over, so no request is at work there.
				return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
			}
			return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte(found)}, nil
		},
		Resume: func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			var cmd command
			if err := json.Unmarshal(op.Record().Input, &cmd); err != nil {
				return idempotency.Result{}, fmt.Errorf("reading the recorded command: %w", err)
			}
			return c.pay(ctx, op, op.Record().Key.Tenant, cmd)
		},
	}
}
