package operator

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DiagnoseWith is Diagnose with other test vectors, as a server has that hashes otherwise.
func DiagnoseWith(ctx context.Context, db *pgxpool.Pool, vectors map[string]int64) (Diagnosis, error) {
	x := examiner{db: db}
	return x.examine(ctx, vectors)
}
