package payments

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/examples/internal/contract"
)

// command is what a client asks for, validated.
type command struct {
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// parse reads a command strictly: exactly the three fields, each once, nothing behind them. Two readers must not be able to
// understand one body differently, and encoding/json alone takes the last of two equal names and any case of them.
// Its error never quotes the body.
func parse(body []byte) (command, error) {
	var c command
	if !utf8.Valid(body) {
		return c, errors.New("the body is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return c, errors.New("the body is not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return c, errors.New("the body is not valid JSON")
		}
		name, _ := t.(string) // a key is always a string
		if seen[name] {
			return c, fmt.Errorf("%.40q is there twice", name)
		}
		seen[name] = true
		if err := c.field(dec, name); err != nil {
			return c, err
		}
	}
	if _, err := dec.Token(); err != nil {
		return c, errors.New("the body is not valid JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return c, errors.New("something follows the JSON object")
	}
	// The id is not the client's to give; any will do for the check.
	p := contract.PaymentCreated{PaymentID: uuid.NameSpaceOID, AccountID: c.AccountID, Amount: c.Amount, Currency: c.Currency}
	if wrong := p.Check(); wrong != nil {
		return c, wrong
	}
	return c, nil
}

func (c *command) field(dec *json.Decoder, name string) error {
	switch name {
	case "account_id", "amount", "currency":
	default:
		return fmt.Errorf("%.40q is no field of a payment: want account_id, amount and currency", name)
	}
	t, err := dec.Token()
	if err != nil {
		return errors.New("the body is not valid JSON")
	}
	text, isText := t.(string)
	number, isNumber := t.(json.Number)
	switch {
	case name == "amount" && isNumber:
		// Not 1.0 and not 1e3: money is counted, not measured.
		if c.Amount, err = strconv.ParseInt(number.String(), 10, 64); err != nil {
			return errors.New("amount must be an integer, in minor units of the currency")
		}
	case name == "amount":
		return errors.New("amount must be a JSON number")
	case !isText:
		return fmt.Errorf("%s must be a JSON string", name)
	case name == "account_id":
		c.AccountID = text
	case name == "currency":
		c.Currency = text
	}
	return nil
}
