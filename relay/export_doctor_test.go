package relay

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DoctorQueries are prepared by a test against the migrated schema.
var DoctorQueries = map[string]string{
	"missingRights": sqlMissingRights, "sequence": sqlSequence, "otherSequence": sqlOtherSequence, "hashVectors": sqlHashVectors, "misplaced": sqlMisplaced,
	"leases": sqlLeases, "aside": sqlAside, "waitingTopics": sqlWaitingTopics, "topics": sqlListTopics, "vacuum": sqlVacuum,
}

// DiagnoseWith is Diagnose with other test vectors, as a server has that hashes otherwise.
func DiagnoseWith(ctx context.Context, db *pgxpool.Pool, vectors map[string]int64) (Diagnosis, error) {
	x := examiner{db: db}
	return x.examine(ctx, vectors)
}
