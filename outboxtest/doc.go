// Package outboxtest helps to test programs that append and apply events.
//
//   - [Appended] returns the events that a transaction has appended, in the transaction itself, which the test then
//     rolls back: it needs no relay, no Kafka and no cleanup.
//   - [Deliver] passes events to a handler as a consumer does. [Redeliver] simulates faults: a process dies before its
//     COMMIT, two processes get the same events at once, and all events are delivered again.
//   - [MemoryPublisher] replaces Kafka behind a relay. It refuses events, fails and loses replies on demand, and a test
//     can wait for published events.
//
// The functions do not check what an effect did; the test does. Wrong use, such as a nil transaction or a missing
// table, fails the test at once.
//
// The functions need a Postgres with effectonce's tables, which the test provides; see package migrations.
package outboxtest
