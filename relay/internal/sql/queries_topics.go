package sql

const (
	ListTopics = `-- relay: list topics
select coalesce(t.topic, p.topic, h.topic), coalesce(t.partitions, 0), t.pinned_at, p.paused_at, coalesce(p.paused_by,
	''), coalesce(p.reason, ''),
	coalesce(h.held, 0)
from {schema}outbox_topic t
full join {schema}outbox_paused_topic p on p.topic = t.topic
full join (select topic, count(*) as held from {schema}outbox_held group by topic) h on h.topic = coalesce(t.topic,
	p.topic)
order by 1`

	Pause = `-- relay: pause
insert into {schema}outbox_paused_topic (topic, paused_by, reason) values ($1, $2, $3) on conflict (topic) do nothing`

	// Of what waits, only what is next: an outbox may have a hundred million events.
	KnowsTopic = `-- relay: knows topic
select exists (select from {schema}outbox_topic t where t.topic = $1)
	or exists (select from {schema}outbox_paused_topic p where p.topic = $1)
	or exists (select from {schema}outbox_held h where h.topic = $1)
	or exists (select from {schema}outbox_lane l cross join lateral (
		select e.topic from {schema}outbox_event e where e.lane = l.lane order by e.id limit 100) e where e.topic = $1)
	or exists (select from (select s.topic from {schema}outbox_scheduled s order by s.due limit 1000) s
		where s.topic = $1)`

	Resume = `-- relay: resume
delete from {schema}outbox_paused_topic where topic = $1`

	// As unsure, for operators and without a lock: with a hundred million held events it takes minutes. Events that are
	// held for the topic as a whole and were never sent are certain: they have no partition yet, and no later event was
	// sent, or they count as sent (noteOvertaken). Those held for a partition are uncertain: later events of their lane
	// may be in the partition that the new count gives them. Events from the WAL are in no journal: those in the tables
	// of lanes with that feed may have been written.
	Uncertain = `-- relay: uncertain
select
	(select count(*) from {schema}outbox_claim c cross join lateral unnest(c.ids) i (id)
		where exists (select from {schema}outbox_event e where e.lane = c.lane and e.id = i.id and e.topic = $1)
			or exists (select from {schema}outbox_held h where h.lane = c.lane and h.id = i.id and h.topic = $1)
			or exists (select from {schema}outbox_parked p where p.lane = c.lane and p.id = i.id and p.topic = $1))
	+ (select count(*) from {schema}outbox_event e where e.topic = $1 and e.lane in (select s.lane
		from {schema}outbox_streamed s)),
	(select count(*) from {schema}outbox_held h where h.topic = $1 and (h.sent or h.partition >= 0)),
	exists (select from {schema}outbox_streamed)`

	// Under the locks of all lanes: it reads the journal, and hardly any held events.
	Unsure = `-- relay: unsure
select exists (select from {schema}outbox_claim c cross join lateral unnest(c.ids) i (id)
		where exists (select from {schema}outbox_event e where e.lane = c.lane and e.id = i.id and e.topic = $1)
			or exists (select from {schema}outbox_held h where h.lane = c.lane and h.id = i.id and h.topic = $1)
			or exists (select from {schema}outbox_parked p where p.lane = c.lane and p.id = i.id and p.topic = $1))
	or exists (select from {schema}outbox_event e where e.topic = $1 and e.lane in (select s.lane
		from {schema}outbox_streamed s))
	or exists (select from {schema}outbox_held h where h.topic = $1 and h.sent)
	or exists (select from {schema}outbox_lane l where exists (select from (
		select from {schema}outbox_held h where h.topic = $1 and h.lane + 0 = l.lane and h.partition >= 0
		order by h.partition, h.seq limit 1) one)),
	exists (select from {schema}outbox_streamed),
	(select count(*) from (
		select from {schema}outbox_lane l cross join lateral (
			select from {schema}outbox_held h where h.topic = $1 and h.lane + 0 = l.lane and h.partition >= 0
			order by h.partition, h.seq limit $2) h limit $2) few)`

	// One topic for operators; the journal is as small as the relays' claims.
	TopicState = `-- relay: topic state
select coalesce(t.partitions, 0), t.pinned_at, p.paused_at, coalesce(p.paused_by, ''), coalesce(p.reason, ''),
	coalesce(m.kafka_cluster, ''),
	(select count(*) from {schema}outbox_claim c cross join lateral unnest(c.ids) i (id)
		where exists (select from {schema}outbox_event e where e.lane = c.lane and e.id = i.id and e.topic = $1)
			or exists (select from {schema}outbox_held h where h.lane = c.lane and h.id = i.id and h.topic = $1)
			or exists (select from {schema}outbox_parked p where p.lane = c.lane and p.id = i.id and p.topic = $1)),
	(select coalesce(sum(cardinality(c.ids)), 0)::bigint from {schema}outbox_claim c)
from {schema}outbox_meta m
left join {schema}outbox_topic t on t.topic = $1
left join {schema}outbox_paused_topic p on p.topic = $1`

	// Not in the order of publishing: it ends after so many rows, whichever these are.
	HeldOfTopic = `-- relay: held of topic
select h.topic, h.partition, count(*), count(distinct h.lane), min(h.held_at), min(h.created_at),
	count(*) filter (where h.sent)
from (select topic, partition, lane, held_at, created_at, sent from {schema}outbox_held where topic = $1 limit $2) h
group by h.topic, h.partition order by h.partition`

	Accept = `-- relay: accept
update {schema}outbox_topic t set partitions = $2, pinned_at = clock_timestamp()
from {schema}outbox_topic old where t.topic = $1 and old.topic = t.topic
returning old.partitions`

	LockLane = `-- relay: lock lane
select from {schema}outbox_lane where lane = $1 for update`

	// The lane's owner does not know yet that it holds events for the topic as a whole: under another fence it reads
	// the groups.
	Refence = `-- relay: refence
update {schema}outbox_lane l set fence = l.fence + 1
where l.lane = $1 and not exists (select from (
	select from {schema}outbox_held h where h.topic = $2 and h.lane + 0 = $1 and h.partition = -1 order by h.seq
	limit 1) one)`

	// A part of regroup, while relays run: the newest events of each partition first, because a partition's held events
	// are published before the topic's. The former partition is recorded as in noteOvertaken.
	RegroupLane = `-- relay: regroup lane
with recursive g as (
	select n.* from (
		select h.partition from {schema}outbox_held h where h.topic = $2 and h.lane + 0 = $1 and h.partition >= 0
		order by h.partition limit 1) n
	union all
	select n.* from g cross join lateral (
		select h.partition from {schema}outbox_held h where h.topic = $2 and h.lane + 0 = $1
			and h.partition > g.partition
		order by h.partition limit 1) n
)
update {schema}outbox_held h set partition = -1, sent = true
where h.ctid = any (array(
	select n.ctid from g cross join lateral (
		select h.ctid from {schema}outbox_held h where h.topic = $2 and h.lane + 0 = $1 and h.partition = g.partition
		order by h.seq desc limit $3) n
	limit $3))`

	ResumeRegrouped = `-- relay: resume regrouped
delete from {schema}outbox_paused_topic where topic = $1 and reason = $2`

	AcceptCluster = `-- relay: accept cluster
update {schema}outbox_meta m set kafka_cluster = $1 from {schema}outbox_meta old returning coalesce(old.kafka_cluster,
	'')`

	HeldEvents = `-- relay: held events
select h.message_id, h.tenant, h.topic, h.key, h.type, h.partition, h.sent or exists (select from {schema}outbox_claim c
	where c.lane = h.lane and h.id = any (c.ids)),
	coalesce(octet_length(h.payload), -1), h.created_at, h.held_at
from {schema}outbox_held h where h.topic = $1 order by h.partition, h.lane, h.seq limit $2`

	LockHeld = `-- relay: lock held
select lane from {schema}outbox_lane where lane in (
	select h.lane from {schema}outbox_held h where h.topic = $1 and ($2::uuid is null or h.message_id = $2))
	order by lane for update`

	// An event in the journal may be in flight. By ctid for the reasons of settle: its lanes are locked.
	DiscardHeld = `-- relay: discard held
with gone as (
	delete from {schema}outbox_held h where h.ctid = any (array(
		select o.ctid from {schema}outbox_held o where o.topic = $1 and ($2::uuid is null or o.message_id = $2)
			and o.lane = any ($3)
		order by o.lane, o.partition, o.seq limit $4))
	returning h.sent or exists (select from {schema}outbox_claim c where c.lane = h.lane
		and h.id = any (c.ids)) as maybe
)
select count(*), count(*) filter (where maybe) from gone`

	// Under the new count, events that were held for different partitions may go to the same one, and later ones of a
	// key past them. Therefore they are held for the topic as a whole and published first, in the order of their
	// numbers. All lanes are locked, and most held events have no partition any more: lane by lane the index skips
	// them.
	Regroup = `-- relay: regroup
update {schema}outbox_held h set partition = -1
where h.ctid = any (array(
	select n.ctid from {schema}outbox_lane l cross join lateral (
		select h.ctid from {schema}outbox_held h where h.topic = $1 and h.lane + 0 = l.lane and h.partition >= 0
		order by h.partition, h.seq offset 0) n))`
)
