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
)

// A payment with a card is made in phases, for no transaction can be open across the provider's answer:
//
//	ids       the payment's identity, recorded before anything is done with it
//	payment   the row, pending
//	charge    the provider's, under a key made of the payment's id
//	accept    the row accepted and the event appended, in one transaction
//
// Whoever goes on after a crash, the caller's retry or recovery, finds what is recorded and repeats only what may be
// repeated.
const (
	stepIDs     = "ids"
	stepPayment = "payment"
	stepCharge  = "charge"
	stepAccept  = "accept"
	stepDecline = "decline"
)

// codeDeclined is the code of the one refusal that is final.
const codeDeclined = "card_declined"

// codeCardDeclined is the same in a problem.
const codeCardDeclined httpedge.Code = "CARD_DECLINED"

// cards is how payments are made with a card.
type cards struct {
	store    *store
	provider Provider
}

// work is the whole operation, from its beginning or from wherever it was left.
func (c *cards) work(ctx context.Context, op *guard.Op, tenant string, cmd command) (idempotency.Result, error) {
	var id ids
	if err := phase(ctx, op, stepIDs, &id, func(context.Context) (any, error) { return newIDs(), nil }); err != nil {
		return idempotency.Result{}, err
	}
	var made time.Time
	err := phase(ctx, op, stepPayment, &made, func(ctx context.Context) (any, error) {
		var at time.Time
		err := c.store.in(ctx, func(tx pgx.Tx) (err error) {
			at, err = c.store.write(ctx, tx, tenant, id, cmd, statusPending)
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
	switch class, _ := idempotency.Classify(err); {
	case err == nil:
	case class == idempotency.ClassTerminal:
		return c.declined(ctx, op, id, err)
	default: // the key keeps this command and its phases, and the next attempt goes on with this payment
		return idempotency.Result{}, err
	}
	err = phase(ctx, op, stepAccept, nil, func(ctx context.Context) (any, error) {
		return nil, c.store.in(ctx, func(tx pgx.Tx) error {
			return c.accept(ctx, tx, tenant, id, cmd, string(reference))
		})
	})
	if err != nil {
		return idempotency.Result{}, err
	}
	return answer(id, cmd, made)
}

// phase is a local one whose outcome is JSON.
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

// chargeKey goes to the provider: of the payment's own id, not of the caller's key, which may mean another intent some
// day.
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
	return c.store.tell(ctx, tx, tenant, id, cmd, at)
}

// declined is the final refusal, kept and replayed.
func (c *cards) declined(ctx context.Context, op *guard.Op, id ids, cause error) (idempotency.Result, error) {
	err := phase(ctx, op, stepDecline, nil, func(ctx context.Context) (any, error) {
		return nil, c.exec(ctx, c.store.decline, id.Payment.String())
	})
	if err != nil {
		return idempotency.Result{}, err
	}
	res, err := httpedge.JSON(http.StatusPaymentRequired, map[string]any{
		"type": "about:blank", "title": "Payment Required", "status": http.StatusPaymentRequired,
		"code":   codeCardDeclined,
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

// handler is how recovery finds out what became of a payment, and goes on with it.
func (c *cards) handler() recovery.Handler {
	return recovery.Handler{
		Probe: func(ctx context.Context, q recovery.ProbeRequest) (recovery.ProbeResult, error) {
			found, err := c.provider.Find(ctx, q.Key)
			switch class, code := idempotency.Classify(err); {
			case class == idempotency.ClassTerminal:
				return recovery.ProbeResult{Outcome: recovery.Refused, Code: code, Text: err.Error()}, nil
			case err != nil:
				return recovery.ProbeResult{}, err
			case found == "":
				// Recovery comes later than the longest time-out of a request to the provider: none is on its way any
				// more.
				return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
			}
			return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte(found)}, nil
		},
		Resume: func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			var cmd command
			if err := json.Unmarshal(op.Record().Input, &cmd); err != nil {
				return idempotency.Result{}, fmt.Errorf("reading the recorded command: %w", err)
			}
			return c.work(ctx, op, op.Record().Key.Tenant, cmd)
		},
	}
}
