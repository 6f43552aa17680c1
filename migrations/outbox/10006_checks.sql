-- +goose Up
-- What the tables refuse stays as it was; what it costs does not. Postgres reads and plans the text of a check constraint
-- again in each statement, and for one inserted row that took longer than everything else. What a domain says is planned
-- once a session. So the rules are domains' now, and the tables check that their columns would pass as such. The columns
-- keep their types: drivers bind values as before, and no plan of a running relay becomes invalid.
create domain outbox_valid_topic as text collate "C"
	check (value ~ '^[a-zA-Z0-9._-]+$' and octet_length(value) <= 249 and value not in ('.', '..'));
create domain outbox_valid_message_id as uuid
	check (value not in ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff'));
create domain outbox_valid_type as text collate "C" check (value <> '');
create domain outbox_valid_key as text collate "C" check (octet_length(value) <= 8192);
-- What ce_time can say. A relay that could not read a row could not pass it either.
create domain outbox_valid_time as timestamptz
	check (value >= timestamptz '0001-01-01 00:00:00+00' and value < timestamptz '10000-01-01 00:00:00+00');
create domain outbox_valid_headers as jsonb
	check (jsonb_typeof(value) = 'object' and jsonb_array_length(jsonb_path_query_array(value, '$.*')) <= 100
		and not value @? 'strict $.* ? (@.type() != "string")'
		and not value @? 'strict $.keyvalue() ? (@.key starts with "ce_" || @.key == "content-type")');

-- The count is always true: it is there because each of its arguments is computed, and a cast that fails is the refusal.
-- Not valid only spares a look at rows that have passed the same rules before.
alter table outbox_event
	drop constraint outbox_event_topic, drop constraint outbox_event_message_id, drop constraint outbox_event_type,
	drop constraint outbox_event_key, drop constraint outbox_event_time, drop constraint outbox_event_headers,
	add constraint outbox_event_valid check (num_nulls(topic::outbox_valid_topic, type::outbox_valid_type, key::outbox_valid_key,
		message_id::outbox_valid_message_id, headers::outbox_valid_headers, event_time::outbox_valid_time, created_at::outbox_valid_time) >= 0) not valid;
alter table outbox_scheduled
	drop constraint outbox_scheduled_topic, drop constraint outbox_scheduled_message_id, drop constraint outbox_scheduled_type,
	drop constraint outbox_scheduled_key, drop constraint outbox_scheduled_time, drop constraint outbox_scheduled_headers,
	add constraint outbox_scheduled_valid check (num_nulls(topic::outbox_valid_topic, type::outbox_valid_type, key::outbox_valid_key,
		message_id::outbox_valid_message_id, headers::outbox_valid_headers, event_time::outbox_valid_time, created_at::outbox_valid_time) >= 0) not valid;
