// Package soak runs producers, relays, workers, an operator and a maintainer for a while, each in a process of its own and
// as the least privileged user, and meanwhile does to them, to Postgres, to Kafka and to the network what an ordinary bad
// week does. Then it stops, waits until everything is well again, and has the histories checked. Its code is in its tests:
//
//	make soak DURATION=5m SEED=42 FAULTS=kill,pause
//
// The seed fixes the schedule of faults, which is printed, and what producers choose.
package soak
