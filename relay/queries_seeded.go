//go:build bugs

package relay

// What a release must not do: see seeded.RelayReleaseIntoOutbox.
const sqlReleaseIntoOutbox = `-- relay: release into outbox
with k as (
	delete from {schema}outbox_parked_key k
	where k.key_hash = sha256(replace($2 || '/' || octet_length($1)::text || '/' || $1 || $3, '\', '\\')::bytea) and k.state = 'parked'
	returning k.key_hash
), gone as (
	delete from {schema}outbox_parked p using k where p.key_hash = k.key_hash and not p.alone returning p.*
), put as (
	insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
	select message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time from gone order by gone.id
)
select count(*) from gone`
