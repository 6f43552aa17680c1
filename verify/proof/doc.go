// Package proof kills processes at every message that they send to Postgres or Kafka, and checks that no guarantee was
// broken. It has tests only: make proof.
//
// A killed process leaves only what Postgres and Kafka did for it. So a crash between two steps in memory is equal to a
// crash after the last statement or request that it sent, and only two crashes per message differ: before it is sent,
// and after it took effect but before the reply is read. Proxies cause both; the product contains no code for it.
//
// A cell is a database, a topic and four processes: a producer, a relay, a worker, and an operator that releases parked
// events. Each process is this test binary behind its own proxies. A process that is about to send a message at which
// none was killed yet is killed there and restarted, while the cell runs disturbances that cause rare statements. Every
// statement of the packages under test must have been covered, and every COMMIT and kind of request that occurred. At
// the end everything must drain, and the records in Kafka and the effects are compared with the committed events.
package proof
