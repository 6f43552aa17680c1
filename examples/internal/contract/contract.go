// Package contract is what the examples agree on: the event that package payments tells and the workers understand.
//
// Services of different teams would each write down their own reading of it; the examples share one to stay short.
package contract

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// Topic and type of the event, fixed for others to build on.
const (
	Topic              = "payments"
	TypePaymentCreated = "PaymentCreated"
)

// MaxAccount is the longest account id, in characters.
const MaxAccount = 200

// PaymentCreated says that a payment was accepted.
type PaymentCreated struct {
	PaymentID uuid.UUID `json:"payment_id"`
	AccountID string    `json:"account_id"`
	// Amount is in minor units of the currency, such as cents; positive.
	Amount int64 `json:"amount"`
	// Currency is the ISO 4217 code, such as "EUR".
	Currency string `json:"currency"`
}

// FieldError says which field is wrong, and what is allowed. It never quotes the value.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

var currency = regexp.MustCompile(`^[A-Z]{3}$`)

// Check returns the first field that is wrong, or nil.
func (p PaymentCreated) Check() *FieldError {
	switch {
	case p.PaymentID == uuid.Nil || p.PaymentID == uuid.Max:
		return &FieldError{"payment_id", "must be a UUID, and neither the nil nor the max one"}
	case strings.TrimSpace(p.AccountID) == "":
		return &FieldError{"account_id", "is required"}
	case utf8.RuneCountInString(p.AccountID) > MaxAccount || !event.Storable(p.AccountID):
		return &FieldError{"account_id", fmt.Sprintf("must be text of at most %d characters, without U+0000",
			MaxAccount)}
	case p.Amount <= 0:
		return &FieldError{"amount", "must be a positive integer, in minor units of the currency"}
	case !currency.MatchString(p.Currency):
		return &FieldError{"currency", "must be three upper-case letters, as in ISO 4217"}
	}
	return nil
}

// Parse reads the event's payload. Fields that it does not know are left alone: a producer may add some. Its error is
// terminal, because the same bytes will be as wrong next time, with the code "malformed" or "invalid_" and the field's
// name; it never quotes the payload.
func Parse(e event.Event) (PaymentCreated, error) {
	p, err := event.DecodeJSON[PaymentCreated](e)
	if err != nil {
		return p, inbox.Terminal(inbox.CodeMalformed, err)
	}
	return p, p.Terminal()
}

// Terminal is Check as a terminal error.
func (p PaymentCreated) Terminal() error {
	if wrong := p.Check(); wrong != nil {
		return inbox.Terminal("invalid_"+wrong.Field, wrong)
	}
	return nil
}
