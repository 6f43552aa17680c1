// Package contract defines the event that package payments appends and the workers read. Services of different teams
// would each have their own definition.
package contract

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/outcome"
)

// Topic and type of the event.
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
	// Amount is positive, in minor units of the currency, such as cents.
	Amount int64 `json:"amount"`
	// Currency is the ISO 4217 code, such as "EUR".
	Currency string `json:"currency"`
}

// FieldError names an invalid field and the values that are allowed. It never quotes the value.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

var currency = regexp.MustCompile(`^[A-Z]{3}$`)

// Check returns an error for the first invalid field, or nil.
func (p PaymentCreated) Check() *FieldError {
	switch {
	case p.PaymentID == uuid.Nil || p.PaymentID == uuid.Max:
		return &FieldError{"payment_id", "must be a UUID other than the nil and the max UUID"}
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

// Parse decodes the event's payload and ignores unknown fields: a producer may add some. Its error is terminal, with
// the code "malformed" or "invalid_" and the field's name, and never quotes the payload.
func Parse(e event.Event) (PaymentCreated, error) {
	p, err := event.DecodeJSON[PaymentCreated](e)
	if err != nil {
		return p, outcome.Terminal(inbox.CodeMalformed, err)
	}
	return p, p.Terminal()
}

// Terminal returns the error of Check as a terminal one.
func (p PaymentCreated) Terminal() error {
	if wrong := p.Check(); wrong != nil {
		return outcome.Terminal("invalid_"+wrong.Field, wrong)
	}
	return nil
}
