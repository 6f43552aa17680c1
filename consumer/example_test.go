package consumer_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
)

// A worker that consumes the events of Debezium's outbox router, whose ids are in the header "id".
func Example() {
	ctx := context.Background()
	db, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		log.Fatal(err)
	}
	in, err := inbox.New(db, "stock", inbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	effect := inbox.Types(map[string]inbox.Effect{
		"OrderPlaced": func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			_, err := tx.Exec(ctx, `update stock set reserved = reserved + 1 where item = $1`, e.Key)
			return err
		},
		"*": func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip },
	})
	c, err := consumer.New(in.Each(effect), []string{"localhost:9092"}, []string{"orders"},
		consumer.Config{IDHeader: "id"})
	if err != nil {
		log.Fatal(err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	if err := g.Wait(); err != nil {
		log.Print(err)
	}
}
