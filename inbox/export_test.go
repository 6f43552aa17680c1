package inbox

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DiscardEvent calls DiscardEvent of an operator of consumer "ledger". Package operator imports this one, so
// operator_test.go sets it.
var DiscardEvent func(ctx context.Context, db *pgxpool.Pool, schema string, id int64) error
