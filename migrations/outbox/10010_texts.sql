-- +goose Up
-- Every text has a bound, as outbox.Append has it: a relay that reads thousands of events at once must know what they take.
create domain outbox_valid_text as text collate "C" check (octet_length(value) <= 2048);

-- As before, with the three texts that had no rule. What is scheduled must pass it too, or could not be moved when its time comes.
alter table outbox_event drop constraint outbox_event_valid,
	add constraint outbox_event_valid check (num_nulls(topic::outbox_valid_topic, type::outbox_valid_type, type::outbox_valid_text, key::outbox_valid_key,
		tenant::outbox_valid_text, source::outbox_valid_text, content_type::outbox_valid_text, message_id::outbox_valid_message_id,
		headers::outbox_valid_headers, event_time::outbox_valid_time, created_at::outbox_valid_time) >= 0) not valid;
alter table outbox_scheduled drop constraint outbox_scheduled_valid,
	add constraint outbox_scheduled_valid check (num_nulls(topic::outbox_valid_topic, type::outbox_valid_type, type::outbox_valid_text, key::outbox_valid_key,
		tenant::outbox_valid_text, source::outbox_valid_text, content_type::outbox_valid_text, message_id::outbox_valid_message_id,
		headers::outbox_valid_headers, event_time::outbox_valid_time, created_at::outbox_valid_time) >= 0);
