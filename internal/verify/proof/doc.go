// Package proof kills processes at every message by which they make somebody else do something, and looks whether a
// promise was broken. It has tests only: make proof.
//
// A process that is killed leaves nothing but what others have done for it. So a death between two steps in its memory
// is the same as one right after the last statement that it sent to Postgres, or request to Kafka, and there is no
// other death than that before such a message and that after it, its answer not read. Proxies see all of them; the
// product has no code for it.
//
// A cell is a database, a topic and four processes that work on them the whole time: a producer, a relay, a worker, and
// an operator who lets parked things go. The processes are this test binary, started again, each behind proxies of its
// own. Whoever is at a message where nobody has died yet dies there, and is started again; meanwhile the cell goes
// through disturbances that make what is rare. Every statement of the product's rooms must have had its deaths, and
// every COMMIT and every kind of request that came. At the end everything must drain, and what is in Kafka and in the
// effects is compared with what was committed.
package proof
