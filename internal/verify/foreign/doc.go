// Package foreign holds tests with producers and outboxes that are not ours: Debezium, a plain Java producer, a table
// that is polled by hand. The pages of docs/migrate are walked through here, with the code and the SQL that they show.
package foreign
