package inbox

import (
	"context"
	"fmt"
	"maps"

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

// there returns the contents of ids that are not new. It returns an error unless each is recorded, or parked if one may
// be.
func (in *Inbox) there(ctx context.Context, on querier, ids []uuid.UUID, parked bool) (map[uuid.UUID]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	contents := map[uuid.UUID]int64{}
	statements := []string{sqlKnownIDs, sqlOpenIDs}
	if !parked {
		statements = statements[:1]
	}
	for _, statement := range statements {
		rows, err := on.Query(ctx, in.q(statement), in.consumer, uuidArray(ids))
		if err != nil {
			return nil, fmt.Errorf("inbox: looking for ids that are not new: %w", err)
		}
		found, err := readContents(rows)
		if err != nil {
			return nil, fmt.Errorf("inbox: looking for ids that are not new: %w", err)
		}
		maps.Copy(contents, found)
	}
	missing := map[uuid.UUID]bool{}
	for _, id := range ids {
		if _, is := contents[id]; !is {
			missing[id] = true
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("inbox: %w", takenError("inbox_message", len(missing)))
	}
	return contents, nil
}
