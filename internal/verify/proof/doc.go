// Package proof kills processes at every failpoint there is, and looks whether a promise was broken. It has tests only,
// behind the build tag failpoints: make proof.
//
// A cell is a database, a topic and four processes that work on them the whole time: a producer, a relay, a worker, and
// an operator who lets parked things go. The processes are this test binary, started again. One of them after the other
// dies at each point of its rooms, early and later, is started again, and dies at the next. At the end of all deaths
// everything must drain, and what is in Kafka and in the effects is compared with what was committed.
package proof
