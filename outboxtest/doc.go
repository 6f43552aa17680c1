// Package outboxtest is for the tests of programs that append and apply events.
//
//   - [Appended] reads what a transaction has appended, in the transaction itself, which the test then rolls back: no
//     relay, no Kafka, no cleaning up.
//   - [Deliver] hands events to a handler as a consumer would, and [Redeliver] as a bad day would: the process dies
//     before its COMMIT, two processes get the same events at once, and they all come again.
//   - [MemoryPublisher] takes Kafka's place behind a relay. It refuses, fails and loses answers when it is told to, and
//     a test waits for what it published.
//
// Nothing here asserts what an effect did; that is the test's own business. What cannot work (a transaction that is
// nil, a table that is not there) ends the test.
//
// The functions need a Postgres with effectonce's tables; see package migrations. Where it comes from is up to the
// test.
package outboxtest
