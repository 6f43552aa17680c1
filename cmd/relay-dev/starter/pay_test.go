package main

import (
	"context"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outboxtest"
)

// TestPayAppendsItsEvent: once, however often the function is called for a payment.
func TestPayAppendsItsEvent(t *testing.T) {
	tx, err := database(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	id := event.NewID().String()
	for range 2 {
		if _, err := tx.Exec(t.Context(), "select pay($1, 'acc-1', 1999)", id); err != nil {
			t.Fatal(err)
		}
	}
	events := outboxtest.Appended(t.Context(), t, tx, "payments")
	if len(events) != 1 || events[0].Key != "acc-1" || events[0].Type != "PaymentMade" {
		t.Errorf("appended %+v", events)
	}
}
