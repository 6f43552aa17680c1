// Package answers lets a proxy spoil what Kafka answers: each error code in each place of each answer that a relay and
// a consumer get, and answers that are malformed, late, repeated, or not those that were asked for.
package answers
