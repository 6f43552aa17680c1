package inbox

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DiscardEvent is what an operator of consumer "ledger" does. Package operator imports this one, so operator_test.go
// sets it.
var DiscardEvent func(ctx context.Context, db *pgxpool.Pool, schema string, id int64) error
