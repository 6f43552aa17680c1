package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/relay/internal/sql"
)

// DiagnoseWith is Diagnose with other test vectors, as on a server with another hash function.
func DiagnoseWith(ctx context.Context, db *pgxpool.Pool, vectors map[string]int64) (Diagnosis, error) {
	in, err := sql.For("")
	if err != nil {
		return Diagnosis{}, err
	}
	x := examiner{db: db, schema: in}
	return x.examine(ctx, vectors, false)
}

// ReadOpen is Status.Open, from another age on.
func ReadOpen(ctx context.Context, db *pgxpool.Pool, long time.Duration) ([]OpenStatus, error) {
	in, err := sql.For("")
	if err != nil {
		return nil, err
	}
	return readOpen(ctx, db, in, long)
}
