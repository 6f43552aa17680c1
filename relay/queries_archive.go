package relay

import "github.com/effectonce/effectonce/internal/pgschema"

// The archive's statements. Those about one day also have {day} (eight digits), {from} and {to} (bounds): DDL takes no
// parameters, and all three are made from a number.
const (
	sqlArchiveDays = `-- relay: archive days
select p.relnamespace::regnamespace::text || '.', floor(extract(epoch from clock_timestamp()) / 86400)::integer,
	array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = p.oid and c.relname ~ '^outbox_archive_[0-9]{8}$' order by 1)
from pg_class p where p.oid = '{schema}outbox_archive'::regclass`

	// Settles wait behind whoever waits for a table's lock, hence the short time-out. Only one maintains at a time.
	sqlArchiveLock = `-- relay: archive lock
select set_config('lock_timeout', $1, true), pg_try_advisory_xact_lock(1701209712, '{schema}outbox_archive'::regclass::oid::integer)`

	sqlMakeArchiveDay = `-- relay: make archive day
create table {schema}outbox_archive_{day} (like {schema}outbox_archive including defaults including storage)`

	sqlAttachArchiveDay = `-- relay: attach archive day
alter table {schema}outbox_archive attach partition {schema}outbox_archive_{day} for values from ('{from}') to ('{to}')`

	sqlDropArchiveDay = `-- relay: drop archive day
drop table if exists {schema}outbox_archive_{day}`

	sqlCleanArchive = `-- relay: clean archive
delete from {schema}outbox_archive_default d
where d.ctid = any (array(select o.ctid from {schema}outbox_archive_default o where o.published_at < $1 limit $2))`

	sqlReplayPlan = `-- relay: replay plan
select count(*), coalesce(sum(octet_length(a.payload)), 0), count(distinct (a.tenant, a.key)), min(a.published_at), max(a.published_at)
from {schema}outbox_archive a
where a.published_at >= $1 and a.published_at < $2 and a.topic = $3 and ($4::text is null or a.key = $4)
	and ($5::text is null or a.tenant = $5) and ($6::text = '' or a.type = $6) and a.pos > $7`

	sqlReplayHead = `-- relay: replay head
select a.pos, a.published_at, a.message_id, a.tenant, a.key, a.type, coalesce(octet_length(a.payload), -1)
from {schema}outbox_archive a
where a.published_at >= $1 and a.published_at < $2 and a.topic = $3 and ($4::text is null or a.key = $4)
	and ($5::text is null or a.tenant = $5) and ($6::text = '' or a.type = $6) and a.pos > $7
order by a.pos limit $8`

	// New ids, the same message ids, the time that the event had: it enters the outbox as any other, behind what is there.
	sqlReplay = `-- relay: replay
with chosen as materialized (
	select a.* from {schema}outbox_archive a
	where a.published_at >= $1 and a.published_at < $2 and a.topic = $3 and ($4::text is null or a.key = $4)
		and ($5::text is null or a.tenant = $5) and ($6::text = '' or a.type = $6) and a.pos > $7
	order by a.pos limit $8
), again as (
	insert into {schema}outbox_event (message_id, source, tenant, topic, key, type, content_type, headers, payload, event_time)
	select message_id, source, tenant, topic, key, type, content_type, headers, payload, coalesce(event_time, created_at)
	from chosen order by pos
)
select count(*), coalesce(max(pos), 0) from chosen`

	sqlReplayRoom = `-- relay: replay room
select count(*) < $1 from (select from {schema}outbox_event limit $1) e`
)

// archiveQueries are the statements of the archive with their schema.
type archiveQueries struct {
	prefix, days, lock, clean, plan, head, replay, room string
}

func newArchiveQueries(prefix string) archiveQueries {
	q := func(sql string) string { return pgschema.Expand(sql, prefix) }
	return archiveQueries{
		prefix: prefix, days: q(sqlArchiveDays), lock: q(sqlArchiveLock), clean: q(sqlCleanArchive),
		plan: q(sqlReplayPlan), head: q(sqlReplayHead), replay: q(sqlReplay), room: q(sqlReplayRoom),
	}
}
