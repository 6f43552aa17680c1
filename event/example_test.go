package event_test

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

// The same intent always has the same id, whoever appends it and however often.
func ExampleIntentID() {
	shop := uuid.MustParse("3b241101-e2bb-4255-8caf-4136c566a962")
	for range 2 {
		fmt.Println(event.IntentID(shop, 1, "welcome mail for customer 7"))
	}
	// Output:
	// 1ac76c59-157b-53d7-9354-e7b433659529
	// 1ac76c59-157b-53d7-9354-e7b433659529
}

// What a handler emits has an id derived from what it handled: running it again emits the same event.
func ExampleDerive() {
	cause := event.Event{ID: uuid.MustParse("019b76da-a800-7000-8000-000000000001")}
	receipt := event.Derive(cause, "receipt", event.Event{Topic: "mails", Type: "ReceiptDue"})
	again := event.Derive(cause, "receipt", event.Event{Topic: "mails", Type: "ReceiptDue"})
	fmt.Println(receipt.ID == again.ID, receipt.ID.String()[:13] == cause.ID.String()[:13])
	// Output: true true
}
