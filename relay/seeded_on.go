//go:build bugs

package relay

import "github.com/effectonce/effectonce/internal/seeded"

// seed puts the bug that is switched on into the statements, if it is one of theirs.
func seed(q *queries, expand func(sql string) string) {
	takes := []*string{&q.take, &q.takeMarked}
	settles := []*string{&q.settleAcked, &q.settleAckedArchived, &q.settlePark, &q.settleHold, &q.settleEntries}
	whole := []*string{&q.settle, &q.settleArchived, &q.settlePlaced}
	for _, sql := range takes {
		// What the relay remembers of a lane is believed, whatever the sequence says.
		seeded.Replace(seeded.RelayCursor, sql, "case when f.floor <= (select last_value from ids) then greatest(f.floor, (select blind from ids)) else 0 end as floor", "f.floor")
		// The relay numbers in the order of what it takes for ids.
		seeded.Replace(seeded.RelayTransactionOrder, sql, "order by e.id", "order by e.xmin::text::bigint, e.id",
			"select e.lane, e.id,", "select e.lane, e.xmin::text::bigint as xid, e.id,", "\nselect lane, id,", "\nselect lane, xid * 1000000000 + id,")
	}
	for _, sql := range takes {
		seeded.Replace(seeded.RelayClaimInOneStatement, sql, "one)\n), picked", "one) for update of l\n), picked")
	}
	seeded.Replace(seeded.RelayClaimInOneStatement, &q.list, "one)\n), keys", "one) for update of l\n), keys")
	seeded.Replace(seeded.RelayClaimInOneStatement, &q.read, "one)\n)\nselect e.lane, e.id, e.ctid, v.large", "one) for update of l\n)\nselect e.lane, e.id, e.ctid, v.large")
	seeded.Replace(seeded.RelayClaimInOneStatement, &q.lock, "for update of l", "")
	seeded.Replace(seeded.RelayCursor, &q.read, "case when f.floor <= (select last_value from ids) then greatest(f.floor, (select blind from ids)) else 0 end as floor", "f.floor")
	for _, sql := range whole {
		seeded.Replace(seeded.RelaySettleWithoutFence, sql, "l.fence = f.fence and l.owner = $3", "$3::uuid is not null")
		seeded.Replace(seeded.RelaySettleClearsJournal, sql, "c.lane = f.lane and c.first_seq = f.first_seq limit 1", "c.lane = f.lane")
	}
	for _, sql := range settles {
		seeded.Replace(seeded.RelaySettleWithoutFence, sql, "l.fence = f.fence and l.owner = $3", "$3::uuid is not null")
	}
	seeded.Replace(seeded.RelaySettleClearsJournal, &q.settleEntries, "and c.first_seq = f.first_seq", "")
	seeded.Replace(seeded.RelayFloorTrustsSequence, &q.holders, "where h.locktype", "where false and h.locktype")
	seeded.Replace(seeded.RelayJournalNumberedAnew, &q.open, "order by c.lane, u.seq", "limit 0")
	seeded.Replace(seeded.RelayJournalNumberedAnew, &q.takeMarked, "c.first_seq >= case when f.fresh then 0 else f.next end", "c.first_seq < 0",
		"), entry as (", expand("), old as (\n\tdelete from {schema}outbox_claim c using mine m where c.lane = m.lane\n), entry as ("))
	seeded.Replace(seeded.RelayJournalSortedByID, &q.open, "unnest(c.ids, c.seqs)", "unnest(array(select i from unnest(c.ids) i order by i), c.seqs)")
	seeded.Replace(seeded.RelayParkWithoutMark, &q.settlePark, "from moved where not alone", "from moved where false", "from again where not alone", "from again where false")
	seeded.Replace(seeded.RelayHostClock, &q.takeOver, "clock_timestamp()", "(clock_timestamp() + interval '2 hours')")
	seeded.Replace(seeded.RelayTakeOverWithoutFence, &q.takeOver, "fence = l.fence + 1", "fence = l.fence")
	seeded.Replace(seeded.RelayWALNumbersAnew, &q.wal.adopt, "else outbox_wal.base end", "else excluded.base end")
	seeded.Replace(seeded.RelayWALSameNumbering, &q.wal.abandon, "where exists (select from gone)", "where false")
	seeded.Replace(seeded.RelayWALSameNumbering, &q.wal.abandonAll, "where exists (select from gone)", "where false")
}
