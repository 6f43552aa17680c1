package inbox

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// takenError is the error of rows that were written and are not there, such as behind a trigger BEFORE INSERT that
// returns null. An id that is not new would be a duplicate, and its event lost without a word.
func takenError(table string, rows int) error {
	return fmt.Errorf("%d rows of %s are neither written nor there: something takes them away, such as a trigger "+
		"BEFORE INSERT that returns null: drop it", rows, table)
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// there returns an error unless each of the ids, which are not new, is recorded, or parked if one may be.
func (in *Inbox) there(ctx context.Context, on querier, ids []uuid.UUID, parked bool) error {
	if len(ids) == 0 {
		return nil
	}
	missing := map[uuid.UUID]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	statements := []string{sqlKnownIDs, sqlOpenIDs}
	if !parked {
		statements = statements[:1]
	}
	for _, statement := range statements {
		rows, err := on.Query(ctx, in.q(statement), in.consumer, uuidArray(ids))
		if err != nil {
			return fmt.Errorf("inbox: looking for ids that are not new: %w", err)
		}
		found, err := readIDs(rows)
		if err != nil {
			return fmt.Errorf("inbox: looking for ids that are not new: %w", err)
		}
		for id := range found {
			delete(missing, id)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("inbox: %w", takenError("inbox_message", len(missing)))
	}
	return nil
}
