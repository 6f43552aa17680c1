package idempotency_test

import (
	"fmt"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/keys"
)

// A fingerprint identifies a command. Members that do not belong to its meaning are omitted, and a release with another
// form of the command still matches the records of the one before.
func ExampleFingerprinter() {
	type transfer struct {
		From   string `json:"from"`
		To     string `json:"to"`
		Amount int64  `json:"amount"`
		Token  string `json:"token"`  // a credential
		Urgent bool   `json:"urgent"` // new in version 2
	}
	prints := idempotency.Fingerprinter{
		Version: 2,
		Omit:    []string{"token"},
		Older: []idempotency.Fingerprinter{{
			Version: 1,
			Omit:    []string{"token", "urgent"},
			Form: func(command any) (any, error) {
				if command.(transfer).Urgent {
					return nil, nil // could not be asked in version 1
				}
				return command, nil
			},
		}},
	}
	key := idempotency.Key{Tenant: "acme", Operation: "transfer.create", Value: keys.NewV4()}
	first, err := prints.Request(key, transfer{From: "a", To: "b", Amount: 100, Token: "one"})
	if err != nil {
		fmt.Println(err)
		return
	}
	retry, _ := prints.Request(key, transfer{From: "a", To: "b", Amount: 100, Token: "two"})
	changed, _ := prints.Request(key, transfer{From: "a", To: "b", Amount: 999, Token: "two"})
	fmt.Println(retry.Matches(first.Fingerprint), changed.Matches(first.Fingerprint), len(retry.Older))
	// Output: true false 1
}
