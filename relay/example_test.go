package relay_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// A relay inside an application: it shares the lanes with every other relay of the outbox, and hands them over on
// SIGTERM.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	box, err := relay.Open(db, "app") // a topic's keys stay in their partitions
	if err != nil {
		log.Fatal(err)
	}
	kafka, err := publisher.NewKafka([]string{"localhost:9092"}, publisher.Config{Pin: box.Pin})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = kafka.Close() }()
	r, err := relay.New(db, kafka, relay.Config{Schema: "app"})
	if err != nil {
		log.Fatal(err)
	}
	// call r.Wake() after a commit that appended, to save the wait for the next probe
	if err := r.Run(ctx); err != nil {
		log.Print(err)
	}
}

// The password is a token of the platform that expires after minutes. Each new connection asks for one, including those
// that the relay opens outside the pool.
func Example_token() {
	ctx := context.Background()
	var token func(ctx context.Context) (string, error) // of RDS, Cloud SQL, Entra or Vault
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	cfg.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) (err error) {
		conn.Password, err = token(ctx)
		return err
	}
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	// relay.New(db, kafka, relay.Config{})
}
