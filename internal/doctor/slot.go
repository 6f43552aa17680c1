package doctor

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/relay"
)

// slot examines the replication slot of relays that read the WAL, if there has been one.
func (f *findings) slot(ctx context.Context, s Subject) {
	o, err := relay.Open(s.DB, s.Schema)
	var st *relay.WALStatus
	if err == nil {
		st, err = o.WALStatus(ctx)
	}
	switch {
	case err != nil:
		f.failed("slot", err)
		return
	case st == nil:
		return
	}
	found := fmt.Sprintf("%s: %s, %d of 32 lanes come from it, %d bytes behind, %d bytes of WAL are kept for it",
		st.Slot, st.State, st.Lanes, st.LagBytes, st.HeldBytes)
	switch {
	case !st.Exists:
		f.add(Warn, "slot", st.Slot+" is missing", "Relays with --feed=wal publish from the table until they have "+
			"made it again. If none is to read the WAL any more, nothing is wrong.",
			"When relays run with --feed=wal, read their log. When none does any more:")
		f.run("wal", "drop")
	case st.State == "lost" || st.State == "unreserved":
		f.add(Fail, "slot", found, "It fell behind max_slot_wal_keep_size. Relays publish from the table, make "+
			"another one, and begin a new incarnation of the numbering.",
			"Raise max_slot_wal_keep_size, and look why the slot was not read or Kafka not reached.")
	case !st.Active:
		f.add(Warn, "slot", found, "Nobody reads it: Postgres keeps all WAL from now on.",
			"Start a relay that reads it; or `relay wal drop`, when none is to read the WAL any more.")
		f.run("run", "--feed=wal")
	case st.SafeBytes == nil:
		f.add(Warn, "slot", found+", without a limit", "If it is not read for long, the WAL fills the disk.",
			"alter system set max_slot_wal_keep_size = '10GB'; select pg_reload_conf()")
	default:
		f.ok("slot", "%s", found)
	}
	if st.Exists {
		f.failover(ctx, s.DB, st.Slot)
	}
}
