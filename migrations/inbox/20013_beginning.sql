-- +goose Up
-- Where the consumer began the partition, and of which log its offsets are: Kafka's id of the topic (null: not known). A
-- topic that was made again has another id, and its offsets mean other records. seen_partitions is how many partitions
-- the topic had when the consumer first saw it (0: not known).
alter table inbox_progress
	add column topic_id        uuid,
	add column began_offset    bigint,
	add column began_at        timestamptz,
	add column began_reason    text not null default '',
	add column seen_partitions integer not null default 0;
