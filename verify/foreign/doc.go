// Package foreign tests other producers and outboxes: Debezium, a plain Java producer, and a polled table. It follows
// the pages of docs/migrate with the code and the SQL that they show.
package foreign
