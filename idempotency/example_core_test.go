package idempotency_test

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/idempotency"
)

// A command's fingerprint tells it from any other under the same key. What is no part of what is asked is left out, and a release that
// changes the command's form still knows the records of the one before.
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
	key := idempotency.Key{Tenant: "acme", Operation: "transfer.create", Value: idempotency.NewKey()}
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

// Keys that name their time are refused when they are older than what is remembered of them.
func ExampleWindow() {
	w := idempotency.Window{Age: 48 * time.Hour}
	fmt.Println(w.CheckV7(idempotency.NewTimedKey()))
	fmt.Println(w.CheckV7("0190a5e0-0000-7000-8000-000000000000"))
	// Output:
	// <nil>
	// invalid idempotency key: idempotency key outside the window in which keys are accepted: it is older than 48h0m0s
}

// The same intent has the same key, without anybody keeping it.
func ExampleIntentKey() {
	invoices := uuid.MustParse("5f3c7a52-6d41-4b0e-9b63-0d8f6a1c2e77")
	once := idempotency.IntentKey(invoices, 1, "invoice", "2026-07", "customer 17")
	again := idempotency.IntentKey(invoices, 1, "invoice", "2026-07", "customer 17")
	august := idempotency.IntentKey(invoices, 1, "invoice", "2026-08", "customer 17")
	fmt.Println(once == again, once == august)
	// Output: true false
}

// A takes 100, B takes 101, and B is done first.
func ExampleWatermark() {
	w := idempotency.Watermark{Low: 99}
	_, _ = w.Add(101, 1000)
	fmt.Println(w.Has(100), w.Has(101), w)
	_, _ = w.Add(100, 1000)
	fmt.Println(w.Has(100), w)
	// Output:
	// false true {99 [101]}
	// true {101 []}
}
