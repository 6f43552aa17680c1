package relay

const sqlNumbering = `-- relay: numbering
select l.lane, l.reserved_seq, m.outbox_id::text, m.incarnation
from {schema}outbox_lane l, {schema}outbox_meta m`

const sqlPinned = `-- relay: pinned
select topic from {schema}outbox_topic order by topic`
