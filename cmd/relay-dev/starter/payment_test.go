package main

import (
	"context"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outboxtest"
)

// TestPaymentAppendsItsEvent looks into the transaction, and rolls it back.
func TestPaymentAppendsItsEvent(t *testing.T) {
	tx, err := database(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if err := record(t.Context(), tx, Payment{ID: event.NewID().String(), Account: "acc-1", Amount: 1999}); err != nil {
		t.Fatal(err)
	}
	events := outboxtest.Appended(t.Context(), t, tx, "payments")
	if len(events) != 1 || events[0].Key != "acc-1" || events[0].Type != "PaymentMade" {
		t.Errorf("appended %+v", events)
	}
}
