package relay

import (
	"context"
	"fmt"

	"github.com/effectonce/effectonce/relay/internal/archive"
)

// Archived is the result of one pass over the archive.
type Archived struct {
	Made    []string `json:"made"`    // days, as 20260102
	Dropped []string `json:"dropped"` // days
	Cleaned int64    `json:"cleaned"` // rows of the default partition that were too old
	// Left are days that could not be made or dropped now: a lock was not free, or the default partition has rows of
	// them already, or too many to be read in 2 s. Nothing is lost by it; the next pass tries again.
	Left []string `json:"left"`
}

// MaintainArchive makes the coming days of the archive and drops those that are older than keepDays (at least 1), in
// UTC. It must run as the owner of the tables: call it daily at least, or let the relays do it, or run `relay archive
// maintain`. It waits for no lock longer than 200 ms and holds none longer than 2 s, because settles wait behind it.
// Several may run at once: one of them works.
func (o *Outbox) MaintainArchive(ctx context.Context, keepDays int) (Archived, error) {
	if keepDays < 1 {
		return Archived{}, fmt.Errorf("relay: an archive of %d days: want at least 1", keepDays)
	}
	a := archive.Archive{DB: o.db, Schema: o.schema, Days: keepDays}
	done, err := a.Maintain(ctx)
	return Archived(done), err
}
