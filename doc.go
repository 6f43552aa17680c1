// Package effectonce has no code: it names what a first service needs of this module.
//
// A producer appends events in the transaction of its own change:
//
//	e, err := event.NewJSON(event.Event{Topic: "orders", Key: o.ID, Type: "OrderPlaced"}, o)
//	...
//	err = outbox.Append(ctx, tx, e)
//
// A relay publishes them, in the application or as the command relay:
//
//	box, err := relay.Open(db, "")
//	kafka, err := publisher.NewKafka(brokers, publisher.Config{Pin: box.Pin})
//	r, err := relay.New(db, kafka, relay.Config{})
//	err = r.Run(ctx)
//
// A consumer applies each once, with its effect in one transaction:
//
//	in, err := inbox.New(db, "ledger", inbox.Config{})
//	c, err := consumer.New(in.Each(inbox.JSON("OrderPlaced", book)), brokers, []string{"orders"}, consumer.Config{})
//	err = c.Run(ctx) // and in.Run(ctx) beside it
//
// The ten names: [github.com/effectonce/effectonce/event.NewJSON],
// [github.com/effectonce/effectonce/outbox.Append], [github.com/effectonce/effectonce/relay.Open],
// [github.com/effectonce/effectonce/publisher.NewKafka], [github.com/effectonce/effectonce/relay.New],
// [github.com/effectonce/effectonce/inbox.New], [github.com/effectonce/effectonce/inbox.JSON],
// [github.com/effectonce/effectonce/consumer.New], [github.com/effectonce/effectonce/outcome.Terminal] for an event
// that no retry can help, and [github.com/effectonce/effectonce/outboxtest.Redeliver] to test an effect with
// duplicates, crashes and races. The command `relay migrate` makes the tables.
//
// A whole program is in examples/embed, the promises are in docs/guarantees.md.
package effectonce
