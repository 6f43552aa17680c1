package payments

import (
	"github.com/google/uuid"

	"github.com/effectonce/effectonce/examples/internal/contract"
)

// command is what a client asks for, validated.
type command struct {
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"` // an integer, not 1.0 and not 1e3: money is counted, not measured
	Currency  string `json:"currency"`
}

// check validates it. Its error quotes no value.
func (c command) check() error {
	// The id is not the client's to give; any will do for the check.
	p := contract.PaymentCreated{
		PaymentID: uuid.NameSpaceOID, AccountID: c.AccountID, Amount: c.Amount,
		Currency: c.Currency,
	}
	if wrong := p.Check(); wrong != nil {
		return wrong
	}
	return nil
}
