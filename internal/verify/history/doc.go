// Package history is how a run of many processes under faults is judged afterwards. Each process writes down what it is
// about to do and what came of it ([Writer]: JSON lines, each one write(2), so that a SIGKILL leaves at most a torn
// last line). At the end the harness reads what the databases and Kafka hold (package dump). [Check] is a pure function
// from these to a [Verdict] on the invariants: the first violating events are told as a short story.
//
// What a process saw is never the truth about a COMMIT whose reply was lost: the business rows, written in the same
// transaction as the events, are. Wall times serve the stories and decide nothing.
package history
