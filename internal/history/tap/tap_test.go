package tap

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox"
)

// A tapped handler still has all that a consumer looks for in an inbox's.
func TestHandlerHidesNothing(t *testing.T) {
	t.Parallel()
	db, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	in, err := inbox.New(db, "ledger", inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Handler(nil, "ledger", in.Batch(Effect(nil, "ledger"))).(whole); !ok {
		t.Error("a consumer would not find in the tap what it finds in an inbox's handler")
	}
}
