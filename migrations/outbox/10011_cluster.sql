-- +goose Up
-- The Kafka cluster that the outbox publishes to, by the id that its brokers tell; null until the first contact. Another one needs
-- an operator: what went there would leave the outbox for where no consumer reads.
alter table outbox_meta add column kafka_cluster text collate "C" check (kafka_cluster <> '');
