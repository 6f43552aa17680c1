package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
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

func TestBadPaymentsAreRefused(t *testing.T) {
	mux := http.NewServeMux()
	if _, err := routes(mux, database(t)); err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"", "a\\u0000", strings.Repeat("a", 101)} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(`{"account": "`+account+`", "amount": 1}`))
		r.Header.Set("Idempotency-Key", "k-1")
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, r); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", account, w.Code, w.Body)
		}
	}
}
