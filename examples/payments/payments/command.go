package payments

import (
	"github.com/google/uuid"

	"github.com/effectonce/effectonce/examples/contract"
)

// command is the body of POST /payments.
type command struct {
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"` // in minor units; 1.0 and 1e3 are refused
	Currency  string `json:"currency"`
}

// check validates the command. Its error quotes no value.
func (c command) check() error {
	// The server makes the id; the check needs any valid one.
	p := contract.PaymentCreated{
		PaymentID: uuid.NameSpaceOID, AccountID: c.AccountID, Amount: c.Amount,
		Currency: c.Currency,
	}
	if wrong := p.Check(); wrong != nil {
		return wrong
	}
	return nil
}
