package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// ArchiveDay is a partition of the archive.
type ArchiveDay struct {
	Day    string `json:"day"`    // as 2026-01-02; empty: the default partition
	Events int64  `json:"events"` // an estimate of Postgres; -1: it has none
	Bytes  int64  `json:"bytes"`  // with its indexes
}

// Archive lists the days of the archive, the newest first. It reads only the catalog.
func (o *Operator) Archive(ctx context.Context) ([]ArchiveDay, error) {
	return audit.List(ctx, o.person, "looking at the archive", pgx.RowToStructByPos[ArchiveDay], o.q(sql.Archive))
}
