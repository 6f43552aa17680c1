package sql

// The floor's statements (P6). Each contains the text that names the numbering of ids: system, timeline, sequence and
// the file of its value. A sequence that returns ids out of order has no numbering, nor has one that is not the
// table's.
const (
	Highest = `-- relay: highest
select coalesce((select c.system || '/' || c.timeline || '/' || q.seqrelid::oid || '/' ||
	pg_relation_filenode(q.seqrelid)
		from pg_sequence q, {schema}outbox_server() c
		where q.seqrelid = '{schema}outbox_event_id_seq'::regclass and q.seqcache = 1 and not q.seqcycle
			and q.seqincrement = 1
			and q.seqrelid = pg_get_serial_sequence('{schema}outbox_event', 'id')::regclass), ''),
	(select case when n.is_called then n.last_value else n.last_value - 1 end from {schema}outbox_event_id_seq n)`

	// Transactions that may have drawn an id and are not decided. An insert takes this lock before it draws its id, and
	// the lock is listed under this mode whatever else its transaction holds. Stronger modes alone, such as those of
	// VACUUM, ANALYZE and CREATE INDEX CONCURRENTLY, draw no id. A prepared transaction gets another name after a
	// restart, and on some servers when it is prepared, so it is marked. Its id is the lowest that it has:
	// subtransactions get theirs later. pg_locks lacks the epoch; it is that of the id closest to the next one.
	Holders = `-- relay: holders
with held as materialized (
	select l.virtualtransaction as name, l.pid, l.mode, l.locktype, l.relation, l.database, l.transactionid
	from pg_locks l where l.granted
)
select distinct h.name, h.pid is null, coalesce((
	select min(s.next + ((x.transactionid::text::bigint - s.next + 2147483648) & 4294967295) - 2147483648)::text
	from held x, (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next) s
	where x.locktype = 'transactionid' and x.mode = 'ExclusiveLock' and x.name = h.name), '')
from held h
where h.locktype = 'relation' and h.mode = 'RowExclusiveLock' and h.relation = '{schema}outbox_event'::regclass
	and h.database = (select d.oid from pg_database d where d.datname = current_database())`

	// Which of the transactions have ended, and whether they may have committed.
	Ended = `-- relay: ended
select x.xid::text, pg_xact_status(x.xid) is distinct from 'aborted'
from unnest($1::text::xid8[]) x (xid) where pg_visible_in_snapshot(x.xid, pg_current_snapshot())`

	// The smallest existing id of each lane, from its floor up to an id; 0: none.
	Smallest = `-- relay: smallest
select f.lane, coalesce((select e.id from {schema}outbox_event e
	where e.lane = f.lane and e.id > f.floor and e.id <= f.top order by e.id limit 1), 0)
from unnest($1::smallint[], $2::bigint[], $3::bigint[]) f (lane, floor, top)`

	// Lanes with an open entry at or above a number: as in take, there may be many settled entries below.
	Unsettled = `-- relay: unsettled
select f.lane from unnest($1::smallint[], $2::bigint[]) f (lane, first_seq)
where exists (select from (
	select from {schema}outbox_claim c where c.lane = f.lane and c.first_seq >= f.first_seq
	order by c.first_seq limit 1) one)`

	Below = `-- relay: below
select f.lane from unnest($1::smallint[], $2::bigint[]) f (lane, floor)
where exists (select from (
	select from {schema}outbox_event e where e.lane = f.lane and e.id > $3 and e.id <= least(f.floor, $4)
	order by e.id limit 1) one)`
)
