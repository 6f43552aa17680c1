package redisstore_test

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency/redisstore"
)

// The store for a service, with a look at the server's settings.
func Example() {
	_ = func(ctx context.Context) error {
		client := redis.NewClient(&redis.Options{ // or NewFailoverClient, NewClusterClient
			Addr: "redis:6379", ContextTimeoutEnabled: true,
		})
		store, err := redisstore.New(client, redisstore.Config{Prefix: "shop"})
		if err != nil {
			return err
		}
		warnings, err := store.Check(ctx) // once, when the program starts
		slog.Info("the store of keys", "warnings", warnings)
		return err
	}
}
