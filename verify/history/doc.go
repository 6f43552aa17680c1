// Package history checks a run of many processes under faults after its end. Each process records its operations and
// their outcomes ([Writer] writes JSON lines, each with one write(2), so that SIGKILL leaves at most a torn last line).
// At the end the harness reads the databases and Kafka (package dump). [Check] is a pure function of both, which
// returns a [Verdict] on the invariants, with a story of the first events of each violation.
//
// For a COMMIT with a lost reply the business rows, which the transaction writes beside the events, decide. Wall clock
// times are used in stories only.
package history
