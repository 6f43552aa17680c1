package tap

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// A consumer finds in a tapped handler what it finds in the inbox's own: it asks by interfaces, and a miss is silent.
func TestHandlerKeepsWhatAConsumerLooksFor(t *testing.T) {
	t.Parallel()
	db, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none") // connects to nothing before it is used
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	in, err := inbox.New(db, "ledger", inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h := Handler(nil, "ledger", in.Each(func(context.Context, pgx.Tx, event.Event) error { return nil }))
	if got, ok := h.(inboxed); !ok || got.Consumer() != "ledger" {
		t.Errorf("a tapped handler is a bare %T", h)
	}
}
